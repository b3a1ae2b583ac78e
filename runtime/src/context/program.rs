// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a loaded code object without the device.
//!
//! INVARIANT: it follows from the file and the address of its image, so a restore makes it again from these two.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytemuck::pod_read_unaligned;
use queues::hsa::KernelDescriptor;
use queues::target::Target;

use crate::code_object::{AgentFeatures, CodeObject, KernargError, KernargLayout, Kernel};
use crate::context::error::LoadError;

/// A code object and where it is loaded.
#[derive(Debug)]
pub struct Program {
    object: CodeObject,
    base: u64,
    layouts: BTreeMap<String, Result<Arc<KernargLayout>, KernargError>>,
}

impl Program {
    /// Checks a file against an agent's instruction set and what is switched on there.
    ///
    /// # Errors
    /// [`LoadError::CodeObject`], [`LoadError::Descriptor`].
    pub fn check(target: &Target, features: AgentFeatures, bytes: &[u8]) -> Result<CodeObject, LoadError> {
        let object = CodeObject::parse(bytes)?;
        object.check_agent(target, features)?;
        for kernel in object.kernels() {
            let descriptor: KernelDescriptor = pod_read_unaligned(&kernel.descriptor);
            descriptor
                .validate(target)
                .map_err(|source| LoadError::Descriptor { kernel: kernel.name.clone(), source })?;
        }
        Ok(object)
    }

    /// A checked code object placed at `base`.
    pub fn new(object: CodeObject, base: u64) -> Self {
        let layout =
            |kernel: &Kernel| (kernel.name.clone(), KernargLayout::new(&kernel.metadata).map(Arc::new));
        let layouts = object.kernels().iter().map(layout).collect();
        Program { object, base, layouts }
    }

    /// Where the arguments of the kernel of this name lie; `None` if there is none.
    pub fn layout(&self, name: &str) -> Option<&Result<Arc<KernargLayout>, KernargError>> {
        self.layouts.get(name)
    }

    /// The code object.
    pub fn object(&self) -> &CodeObject {
        &self.object
    }

    /// Address of its image.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The kernel whose descriptor is at `object`.
    pub fn kernel_of(&self, object: u64) -> Option<&str> {
        let offset = object.checked_sub(self.base)?;
        let kernel = self.object.kernels().iter().find(|kernel| kernel.descriptor_offset == offset)?;
        Some(&kernel.name)
    }

    /// The kernel whose code is the last to start at or before `pc`, and the offset of `pc` in it.
    pub fn kernel_at(&self, pc: u64) -> Option<(&str, u64)> {
        let offset = pc.checked_sub(self.base)?;
        let before = self.object.kernels().iter().filter(|kernel| kernel.entry_offset <= offset);
        let kernel = before.max_by_key(|kernel| kernel.entry_offset)?;
        Some((&kernel.name, offset - kernel.entry_offset))
    }
}
