// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executables: code objects placed in an agent's memory.
//!
//! INVARIANT: an image never moves, so kernel addresses in packets stay right across checkpoints; and it is freed
//! only when no handle on the executable or one of its kernels is left and no queue may still run it. Where its addresses
//! may have held other code, the agent has forgotten that code before anybody is told of the executable.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytemuck::pod_read_unaligned;
use queues::hsa::KernelDescriptor;
use queues::target::Target;
use queues::words::size;
use stasis_protocol::Limit;

use crate::agent::Agent;
use crate::code_object::bundle::code_for;
use crate::code_object::{CodeObject, CodeObjectError, KernargLayout, KernelMetadata};
use crate::context::Context;
use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, flags};
use crate::context::error::{DeviceError, FreeError, LoadError, TransferError};
use crate::context::memory::free::{free_bo, free_deferred};
use crate::context::memory::host_writes::Written;
use crate::context::memory::make::{bo_view, make_bo, unmake_bo};
use crate::context::memory::request::Request;
use crate::context::program::Program;
use crate::context::queue::code_caches;
use crate::context::queue::scratch::max_lane_bytes;
use crate::context::queue::transfer::{Transfer, TransferEngine};
use crate::context::registry::state::{BoKey, BoRole, ExecutableKey, QueueKey};
use crate::context::registry::{self, Registry};

/// TIMEOUT: how long dropping an executable waits for its last dispatches; then its image stays until the process
/// ends.
const DROP_GRACE: Duration = Duration::from_millis(100);
/// TIMEOUT: an image has some megabytes at most, which a copy engine moves in milliseconds.
const UPLOAD: Duration = Duration::from_secs(10);
/// LDS that one work-group can have, bytes.
const LDS_LIMIT: u32 = 64 << 10;
/// Bytes of an image that a copy engine moves at a time.
const UPLOAD_BYTES: u64 = 1 << 20;

/// A handle on a loaded code object; clones name the same one, which is unloaded with the last.
#[derive(Clone)]
pub struct Executable(Arc<Handle>);

struct Handle {
    agent: Agent,
    key: ExecutableKey,
    program: Arc<Program>,
    /// Queues that ran it: bit = key index mod 64.
    uses: AtomicU64,
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("key", &self.0.key).field("base", &self.0.program.base()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let context = &self.agent.context;
        let Ok(pass) = context.gate.enter() else { return };
        let image = {
            let mut registry = context.registry.lock();
            registry.executables.remove(self.key).map(|executable| {
                context.code_caches.note_unload(executable.agent);
                // From here on the image is an ordinary buffer that packets may still use.
                if let Some(bo) = registry.bos.get_mut(executable.image) {
                    bo.state.role = BoRole::User;
                }
                executable.image
            })
        };
        let Some(image) = image else { return };
        let uses = *self.uses.get_mut();
        match free_bo(context, &pass, image, uses, DROP_GRACE) {
            Ok(()) | Err(FreeError::Stale { .. } | FreeError::Lost(_)) => {}
            Err(_) => context.deferred.lock().push((image, uses)),
        }
    }
}

/// A kernel of a loaded executable.
#[derive(Clone)]
pub struct Kernel {
    executable: Executable,
    pub(crate) kernel: Arc<crate::code_object::Kernel>,
    pub(crate) layout: Arc<KernargLayout>,
    pub(crate) object_va: u64,
    pub(crate) limits: LaunchLimits,
}

/// What a kernel's agent gives its launches, found once when the kernel is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchLimits {
    /// Most LDS of a work-group, bytes.
    pub lds: u32,
    /// Most scratch of a lane, bytes, for waves of the kernel's size.
    pub scratch: u32,
    /// Whether its launches are bounded by the two below only: any shape of a work-group will do, and its scratch is known
    /// and not too much.
    pub is_plain: bool,
    /// Most work-items of a work-group.
    pub items: u64,
    /// Most LDS beyond what it has compiled in, bytes.
    pub dynamic_lds: u32,
}

impl LaunchLimits {
    fn of(target: &Target, metadata: &KernelMetadata) -> Self {
        let lds = target.max_group_segment_bytes.min(LDS_LIMIT);
        let scratch = target.scratch.map_or(0, |format| max_lane_bytes(&format, metadata.wavefront_size));
        let dynamic_lds = lds.checked_sub(metadata.group_bytes);
        Self {
            lds,
            scratch,
            is_plain: metadata.required_workgroup.is_none()
                && !metadata.uses_dynamic_stack
                && metadata.private_bytes <= scratch
                && dynamic_lds.is_some(),
            items: metadata.max_flat_workgroup_size.into(),
            dynamic_lds: dynamic_lds.unwrap_or(0),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.kernel.name).field("object", &self.object_va).finish()
    }
}

/// Where an image is placed. The CPU writes what it sees, which costs no queue, and the host data path is flushed before the
/// first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the agent's memory, which the CPU sees.
    Visible,
    /// In the agent's memory, which a copy engine fills.
    Hidden,
    /// In system memory.
    System,
}

impl Place {
    fn of(info: &AgentInfo) -> Self {
        match info.is_visible() {
            true => Place::Visible,
            false if info.copy_engines() > 0 => Place::Hidden,
            false => Place::System,
        }
    }
}

/// Writes an image to its memory, whose address is the answer.
fn write_image(
    context: &Context,
    registry: &mut Registry,
    device: &Device,
    info: &AgentInfo,
    (image, place): (BoKey, Place),
    relocate: impl Fn(u64) -> Result<Vec<u8>, CodeObjectError>,
) -> Result<u64, LoadError> {
    let absent = || LoadError::Memory(DeviceError::Absent { what: "the image's memory" }.into());
    let va = registry.bos.get(image).ok_or_else(absent)?.state.va;
    let bytes = relocate(va)?;
    if place == Place::Hidden {
        upload(context, registry, device, info, va, &bytes)?;
        return Ok(va);
    }
    bo_view(registry, image).ok_or_else(absent)?.write(0, &bytes);
    if place == Place::Visible {
        context.host_writes.note(Written::to(info.index()));
    }
    Ok(va)
}

/// Has a copy engine write `bytes` at `va`, in the agent's memory.
fn upload(
    context: &Context,
    registry: &mut Registry,
    device: &Device,
    info: &AgentInfo,
    va: u64,
    bytes: &[u8],
) -> Result<(), LoadError> {
    let limit = Limit::within(UPLOAD);
    let engine = TransferEngine::new(context, registry, device, info, (1, UPLOAD_BYTES), &limit)
        .map_err(LoadError::Engine)?;
    let moved = (|| {
        let buffer = engine.take()?;
        for (part, at) in bytes.chunks(size(UPLOAD_BYTES)).zip((va..).step_by(size(UPLOAD_BYTES))) {
            engine.buffer(buffer).write(0, part);
            let transfer = Transfer { va: at, bytes: part.len() as u64, at: 0 };
            engine.store(buffer, std::iter::once(transfer))?;
        }
        Ok::<_, TransferError>(())
    })();
    let ended = engine.end(registry, device);
    moved?;
    ended.map_err(|error| LoadError::Engine(error.into()))
}

impl Executable {
    /// Loads a code object (an ELF file, versions 4 to 6) on `agent`. Of an offload bundle with code objects for several
    /// targets, compressed or not, it is the one for this agent ([`Agent::code_of`]); the rest is not kept.
    ///
    /// # Errors
    /// [`LoadError::CodeObject`] if the file is not one, or for other targets; [`LoadError::Descriptor`],
    /// [`LoadError::Memory`], [`LoadError::CodeCaches`], [`LoadError::Lost`].
    pub fn load(agent: &Agent, file: &[u8]) -> Result<Self, LoadError> {
        Self::load_with(agent, file, |_| None)
    }

    /// The same for a code object with undefined symbols, whose addresses `resolve` knows.
    ///
    /// # Errors
    /// As for [`Executable::load`].
    pub fn load_with(
        agent: &Agent,
        file: &[u8],
        resolve: impl Fn(&str) -> Option<u64>,
    ) -> Result<Self, LoadError> {
        let features = agent.features()?;
        let bytes = &*code_for(file, agent.target(), features)?;
        let object = Program::check(agent.target(), features, bytes)?;
        let context = &agent.context;
        let index = agent.info.index();
        let plan = object.plan();
        let place = Place::of(&agent.info);
        let request = match place {
            Place::Visible => Request::vram(BoRole::Image, plan.image_bytes(), index, true),
            Place::Hidden => Request::vram(BoRole::Image, plan.image_bytes(), index, false),
            Place::System => Request::queue_memory(BoRole::Image, plan.image_bytes(), index),
        };
        let request =
            Request { flags: request.flags | flags::EXECUTABLE, align: plan.alignment(), ..request };
        let pass = context.gate.enter()?;
        free_deferred(context, &pass);
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        let image = make_bo(context, &mut registry, device, request)?;
        let relocate = |va| plan.relocate_with(va, &resolve);
        let names_others = plan.undefined().next().is_some();
        let written = write_image(context, &mut registry, device, &agent.info, (image, place), relocate);
        let va = match written {
            Ok(va) => va,
            Err(error) => {
                unmake_bo(&mut registry, device, image);
                return Err(error);
            }
        };
        context.code_caches.note_load(index);
        let program = Arc::new(Program::new(object, va));
        let key = registry.executables.insert(registry::Executable {
            agent: index,
            code_object: Arc::from(bytes),
            image,
            program: Some(Arc::clone(&program)),
        });
        drop(registry);
        if names_others {
            context.arriving.all(context, &pass).map_err(LoadError::Contents)?;
        }
        let executable =
            Executable(Arc::new(Handle { agent: agent.clone(), key, program, uses: AtomicU64::new(0) }));
        code_caches::settle(context, &pass, &agent.info)?;
        Ok(executable)
    }

    /// Its key in the registry.
    pub fn key(&self) -> ExecutableKey {
        self.0.key
    }

    /// Where it is loaded.
    #[inline]
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// Address of its image.
    pub fn base(&self) -> u64 {
        self.0.program.base()
    }

    /// The code object.
    pub fn object(&self) -> &CodeObject {
        self.0.program.object()
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// [`LoadError::CodeObject`] with the names there are, [`LoadError::Arguments`] if its arguments make no sense.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LoadError> {
        let kernel = self.0.program.object().kernel(name)?;
        let layout = self.0.program.layout(name).cloned();
        let layout = layout
            .ok_or_else(|| CodeObjectError::NoSuchKernel { name: name.to_owned(), known: Vec::new() })??;
        Ok(Kernel {
            executable: self.clone(),
            object_va: self.0.program.base() + kernel.descriptor_offset,
            limits: LaunchLimits::of(self.agent().target(), &kernel.metadata),
            kernel: Arc::new(kernel.clone()),
            layout,
        })
    }

    /// The address of an exported variable.
    pub fn global(&self, name: &str) -> Option<u64> {
        let global = self.0.program.object().globals().iter().find(|global| global.name == name)?;
        Some(self.0.program.base() + global.offset)
    }

    #[inline]
    pub(crate) fn note_use(&self, queue: QueueKey) {
        let bit = 1u64 << (queue.index() % 64);
        if self.0.uses.load(Ordering::Relaxed) & bit == 0 {
            self.0.uses.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// The executable it belongs to.
    #[inline]
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// What the compiler says about it.
    pub fn metadata(&self) -> &crate::code_object::KernelMetadata {
        &self.kernel.metadata
    }

    /// Where its arguments lie.
    pub fn arguments(&self) -> &KernargLayout {
        &self.layout
    }

    /// `kernel_object` of its dispatches: the address of its descriptor.
    pub fn object_va(&self) -> u64 {
        self.object_va
    }

    /// Address of its first instruction, for those who set registers themselves. A multiple of 256.
    pub fn entry_va(&self) -> u64 {
        self.executable.0.program.base() + self.kernel.entry_offset
    }

    /// Its descriptor: the resource words a dispatch needs.
    pub fn descriptor(&self) -> KernelDescriptor {
        pod_read_unaligned(&self.kernel.descriptor)
    }
}

#[cfg(test)]
mod tests;
