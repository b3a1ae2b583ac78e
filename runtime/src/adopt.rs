// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory without its process: a process saves its labelled buffers, and another one, started afresh, takes them over by their
//! labels, at the same addresses. No CRIU, no privilege; queues, kernels and the program's own memory are not in it.
//!
//! INVARIANT: an adoption that fails leaves nothing in the process that adopts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stasis_protocol::Stopped;

use crate::checkpoint::{self, CheckpointError, CheckpointReport, IMAGE_FILE, Metadata, SaveOptions};
use crate::context::device::flags;
use crate::context::error::{AllocError, CopyError};
use crate::context::memory::request::Request;
use crate::context::registry::state::{BoKind, BoRole, BoState, Label};
use crate::image::{Image, ImageError, Limit, for_each};
use crate::pool::{Buffer, Pool};
use crate::runtime::Runtime;

/// Bytes that a label, and its layout, may have.
const LABEL_BYTES: usize = 255;
const LAYOUT_BYTES: usize = 4096;

/// A label was not given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// It is empty, too long, or has control characters.
    #[error("{what} of {bytes} bytes is not one: give printable text of {least} to {most} bytes")]
    Text {
        /// The label, or its layout.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
    /// Another buffer of the process has it.
    #[error("Another buffer has the label {label:?}: free it, or give that one another label first")]
    Taken {
        /// The label.
        label: String,
    },
    /// The buffer cannot be saved by itself.
    #[error("The buffer {what}: only memory of pools of this process's own can be labelled")]
    Kind {
        /// What it is.
        what: &'static str,
    },
    /// It was freed, or the runtime lets nobody in.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Buffers were not adopted; there are none of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The image cannot be used.
    #[error("The image in {} cannot be adopted", directory.display())]
    Image {
        /// Its directory.
        directory: PathBuf,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// Kernels were stopped in the middle when it was written: what they had written may be half of something.
    #[error(
        "The image in {} was written while kernels stood still in the middle: save with drained queues, or restore the whole \
         process", directory.display()
    )]
    Preempted {
        /// Its directory.
        directory: PathBuf,
    },
    /// The contents of a labelled buffer are not in the image: in that of a whole checkpoint, memory that other processes may hold is
    /// its session's.
    #[error("{label:?} was held by other processes and cannot be adopted: restore the whole session")]
    Shared {
        /// The buffer.
        label: String,
    },
    /// No buffer in it has a label.
    #[error("No buffer of the image in {} has a label: give labels before saving (Buffer::set_label)", directory.display())]
    Unlabelled {
        /// Its directory.
        directory: PathBuf,
    },
    /// The agent that is to have a buffer is not here.
    #[error(
        "{label:?} was in the memory of agent {old}, which is to be agent {new} here: there are {agents}"
    )]
    Agent {
        /// The buffer.
        label: String,
        /// The agent that it was of.
        old: usize,
        /// The agent that is to take it.
        new: usize,
        /// How many there are.
        agents: usize,
    },
    /// The label is in use.
    #[error("{label:?} is the label of a buffer that is here already")]
    Taken {
        /// The label.
        label: String,
    },
    /// A label of the image is none.
    #[error("A label of the image cannot be given")]
    Label {
        /// Why.
        #[source]
        source: LabelError,
    },
    /// The buffer's memory cannot be had.
    #[error(
        "{label:?} cannot be had at {va:#x} ({bytes} bytes); adopt before anything else is allocated, so that its address is free"
    )]
    Memory {
        /// The label.
        label: String,
        /// Its address.
        va: u64,
        /// Its length.
        bytes: u64,
        /// Why.
        #[source]
        source: AllocError,
    },
    /// The contents could not be brought into it.
    #[error("{label:?} cannot be filled")]
    Contents {
        /// The label.
        label: String,
        /// Why.
        #[source]
        source: CopyError,
    },
}

/// Which agents take whose buffers: the new index by the old one. Those that are not named keep theirs.
pub type AgentMap = BTreeMap<usize, usize>;

/// A buffer that was adopted.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// It, at the address that it had.
    pub buffer: Buffer,
    /// What its elements are, in the words of whoever labelled it.
    pub layout: String,
    /// Index of the agent whose memory it is; `None`: the host's.
    pub agent: Option<usize>,
}

impl Buffer {
    /// Gives it a label, by which it can be adopted, and says what its elements are, in words of the caller's.
    ///
    /// # Errors
    /// [`LabelError`]; its label, if it has one, stays as it was.
    pub fn set_label(&self, label: &str, layout: &str) -> Result<(), LabelError> {
        check("The label", label, 1, LABEL_BYTES)?;
        check("The layout", layout, 0, LAYOUT_BYTES)?;
        let context = &self.0.context;
        let pass = context.gate.enter().map_err(AllocError::from)?;
        let mut registry = context.registry.lock();
        let has_it = |state: &BoState| state.label.as_ref().is_some_and(|other| other.text == label);
        if registry.bos.iter().any(|(key, bo)| key != self.key() && has_it(&bo.state)) {
            return Err(LabelError::Taken { label: label.to_owned() });
        }
        let state = registry.bos.get_mut(self.key()).map(|bo| &mut bo.state);
        let state = state.ok_or(LabelError::Kind { what: "was freed" })?;
        let obstacle = match (state.role, state.kind, state.sharing) {
            (BoRole::User, BoKind::Vram | BoKind::Gtt, None) => None,
            (_, _, Some(_)) => Some("may be held by other processes"),
            (_, BoKind::Userptr { .. }, _) => Some("is memory that the process had before"),
            _ => Some("is no memory of a pool"),
        };
        if let Some(what) = obstacle {
            return Err(LabelError::Kind { what });
        }
        state.label = Some(Label { text: label.to_owned(), layout: layout.to_owned(), bytes: self.len() });
        drop((registry, pass));
        Ok(())
    }

    /// Its label and the layout that was given with it, if it has one.
    ///
    /// # Errors
    /// [`AllocError::Lost`].
    pub fn label(&self) -> Result<Option<(String, String)>, AllocError> {
        let context = &self.0.context;
        let _pass = context.gate.enter()?;
        let registry = context.registry.lock();
        let label = registry.bos.get(self.key()).and_then(|bo| bo.state.label.as_ref());
        Ok(label.map(|label| (label.text.clone(), label.layout.clone())))
    }
}

fn check(what: &'static str, text: &str, least: usize, most: usize) -> Result<(), LabelError> {
    let bytes = text.len();
    match (least..=most).contains(&bytes) && !text.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(LabelError::Text { what, bytes, least, most }),
    }
}

impl Runtime {
    /// Writes the labelled buffers into `directory`, once the kernels that were submitted have completed; the process runs on, and its
    /// device stays open. An earlier image there is replaced in one step, when this one is complete. [`Runtime::adopt`] takes the buffers
    /// over. Of memory that other processes may write at the same time, whatever it has when it is read.
    ///
    /// # Errors
    /// [`CheckpointError`], of which [`CheckpointError::Unlabelled`] where no buffer has a label. The process runs on, and an earlier image is
    /// as it was; but if the queues cannot run again ([`CheckpointError::Stalled`], [`CheckpointError::Device`]) the image may be there and
    /// the process is LOCKED: [`Runtime::unlock`] tries again.
    pub fn save(&self, directory: &Path, options: &SaveOptions) -> Result<CheckpointReport, CheckpointError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        let act = "make the directory of the image";
        let directory = made
            .and_then(|()| directory.canonicalize())
            .map_err(|source| CheckpointError::System { act, source })?;
        checkpoint::save(self.context(), &directory, options)
    }

    /// Takes over the labelled buffers of an image, at the addresses that they had, with their contents, each part checked against
    /// its hash. `agents` says which agent takes whose.
    ///
    /// # Errors
    /// [`AdoptError`]; nothing was adopted.
    pub fn adopt(
        &self,
        directory: &Path,
        agents: &AgentMap,
    ) -> Result<BTreeMap<String, Adopted>, AdoptError> {
        let unusable = |source| AdoptError::Image { directory: directory.into(), source };
        let image = Image::open(&directory.join(IMAGE_FILE)).map_err(unusable)?;
        let metadata: Metadata = image.metadata().map_err(unusable)?;
        if metadata.preempted {
            return Err(AdoptError::Preempted { directory: directory.into() });
        }
        let mut buffers: Vec<Option<(String, Buffer)>> = Vec::new();
        let mut labels: BTreeMap<String, Adopted> = BTreeMap::new();
        let states: BTreeMap<u32, &BoState> =
            metadata.registry.bos.entries.iter().map(|(index, state)| (*index, state)).collect();
        let saved: BTreeSet<u32> = metadata.extents.iter().filter_map(|name| index(name)).collect();
        let mut labelled = states.iter().filter_map(|(index, state)| Some((index, state.label.as_ref()?)));
        if let Some((_, label)) = labelled.find(|(index, _)| !saved.contains(index)) {
            return Err(AdoptError::Shared { label: label.text.clone() });
        }
        for name in &metadata.extents {
            let state = index(name).and_then(|index| states.get(&index));
            let labelled = state.and_then(|state| Some((*state, state.label.as_ref()?)));
            let made = labelled.map(|(state, label)| self.take_over(state, label, agents)).transpose()?;
            buffers.push(made.as_ref().map(|(label, adopted)| (label.clone(), adopted.buffer.clone())));
            if let Some((label, adopted)) = made {
                match labels.entry(label) {
                    Entry::Vacant(entry) => drop(entry.insert(adopted)),
                    Entry::Occupied(entry) => return Err(AdoptError::Taken { label: entry.key().clone() }),
                }
            }
        }
        if labels.is_empty() {
            return Err(AdoptError::Unlabelled { directory: directory.into() });
        }
        fill(&image, &buffers).map_err(|error| match error {
            FillError::Image(source) => unusable(source),
            FillError::Copy(label, source) => AdoptError::Contents { label, source },
        })?;
        Ok(labels)
    }

    /// Makes a buffer at the address that it had, and gives it its label.
    fn take_over(
        &self,
        state: &BoState,
        label: &Label,
        agents: &AgentMap,
    ) -> Result<(String, Adopted), AdoptError> {
        let (text, va, bytes) = (label.text.clone(), state.va, label.bytes);
        let place = |old: usize| agents.get(&old).copied().unwrap_or(old);
        let agent = |old: usize| {
            let new = place(old);
            let found = self.agent(new);
            found.ok_or_else(|| AdoptError::Agent {
                label: text.clone(),
                old,
                new,
                agents: self.agents().len(),
            })
        };
        let old = state.agent.at();
        let pool = match (state.kind, state.flags & !flags::EXECUTABLE) {
            (BoKind::Vram, flags::VRAM_FINE | flags::VRAM_FINE_HIDDEN) => agent(old)?.fine_vram(),
            (BoKind::Vram, _) => agent(old)?.vram(),
            _ => self.gtt(),
        };
        let memory = |source| AdoptError::Memory { label: text.clone(), va, bytes, source };
        let buffer = at(&pool, state, bytes).map_err(memory)?;
        if state.kind == BoKind::Vram {
            let wanted = state
                .mapped
                .iter()
                .filter(|&other| *other != state.agent && !state.for_copies.contains(other));
            for other in wanted {
                buffer.allow(&agent(other.at())?).map_err(memory)?;
            }
        }
        match buffer.set_label(&label.text, &label.layout) {
            Ok(()) => {
                let agent = (state.kind == BoKind::Vram).then(|| place(old));
                Ok((text, Adopted { buffer, layout: label.layout.clone(), agent }))
            }
            Err(LabelError::Alloc(source)) => Err(memory(source)),
            Err(LabelError::Taken { label }) => Err(AdoptError::Taken { label }),
            Err(source) => Err(AdoptError::Label { source }),
        }
    }
}

/// `5` of `#5.1`, as keys are printed; an extent of shared memory is called otherwise.
fn index(name: &str) -> Option<u32> {
    name.strip_prefix('#')?.split('.').next()?.parse().ok()
}

/// A buffer of a pool at the address of another process's, of `bytes` bytes.
fn at(pool: &Pool, state: &BoState, bytes: u64) -> Result<Buffer, AllocError> {
    let request = pool.request(state.bytes);
    let more = state.flags & flags::EXECUTABLE;
    // An image may say anything; a handle never names more than there is.
    let bytes = bytes.min(state.bytes).max(1);
    pool.make(Request { flags: request.flags | more, at: Some(state.va), ..request }, bytes)
}

enum FillError {
    Image(ImageError),
    Copy(String, CopyError),
}

impl From<Stopped> for FillError {
    fn from(stopped: Stopped) -> Self {
        Self::Image(ImageError::Stopped(stopped))
    }
}

/// Brings the chunks of those extents that have a buffer into it. What has no chunk is zero, as new memory is.
fn fill(image: &Image, buffers: &[Option<(String, Buffer)>]) -> Result<(), FillError> {
    let chunks = image.chunks();
    let of = |index: usize| buffers.get(chunks[index].extent as usize)?.as_ref();
    let wanted: Vec<usize> = (0..chunks.len()).filter(|&index| of(index).is_some()).collect();
    for_each(wanted.len(), 1, &Limit::none(), |n, chunk_buffer| {
        let index = wanted[n];
        let Some((label, buffer)) = of(index) else { return Ok(()) };
        let mut copied = Ok(());
        image
            .read_chunk(index, chunk_buffer, |bytes| copied = put(buffer, chunks[index].offset, bytes))
            .map_err(FillError::Image)?;
        copied.map_err(|error| FillError::Copy(label.clone(), error))
    })
}

/// Copies what belongs to the buffer: its last page may have more.
fn put(buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
    let room = buffer.len().saturating_sub(offset);
    let bytes = usize::try_from(room).map_or(bytes, |room| &bytes[..bytes.len().min(room)]);
    if bytes.is_empty() { Ok(()) } else { buffer.upload(offset, bytes) }
}
