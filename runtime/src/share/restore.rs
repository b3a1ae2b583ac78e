// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory in a restore: made by the first participant that joins, found by the others, filled from the
//! image of whoever saved it.
//!
//! INVARIANT: everything that this process is to make is made, filled and given to the others before it waits for
//! anything that they are to make: so members cannot wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kfd::sys::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
use queues::words::count;
use serde::Deserialize;
use stasis_protocol::Limit;

use super::descriptors::{View, placeholders, restore_descriptors};
use super::error::{SharedMemoryError, device, system};
use super::graph::bos_of;
use super::rendezvous::{Claim, Client, Coordinator, RendezvousPoint};
use super::state::SharedState;
use super::table::Object;
use crate::context::device::{Device, identify};
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoRole, BoState, DmabufId, Sharing};
use crate::context::registry::{Bo, Registry};
use crate::image::{Extent, IMAGE_FILE, Image, ReadStats};

/// What of another member's image matters here.
#[derive(Deserialize)]
struct MemberMetadata {
    #[serde(default)]
    sharing: Option<SharedState>,
    extents: Vec<String>,
}

/// Where the contents come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// This process's image.
    pub image: &'a Image,
    /// Where it lies now; none for one in memory.
    pub directory: Option<&'a Path>,
    /// The names of its extents.
    pub names: &'a [String],
    /// The uuids of the agents when it was written.
    pub homes: &'a [String],
    /// The memory that is not shared, which are the first extents; without what is filled later.
    pub plain: &'a [Option<Extent<'a>>],
}

/// Memory that is being restored.
struct Memory<'a> {
    object: &'a Object,
    keys: Vec<BoKey>,
    file: Option<OwnedFd>,
}

/// A participant that has all the memory it needs.
#[derive(Debug)]
pub(crate) struct RestoreParticipant {
    client: Client,
    coordinator: Option<Coordinator>,
}

impl RestoreParticipant {
    /// Tells the others that this process is restored. Returns the coordinator, if it runs in this process: the caller
    /// must keep it.
    pub fn finish(self) -> Option<Coordinator> {
        if let Err(error) = self.client.done() {
            tracing::warn!(target: "checkpoint", %error, "members that come later do not know of this one");
        }
        self.coordinator
    }
}

/// Fills this process's memory and gets its shared memory back.
///
/// # Errors
/// [`SharedMemoryError::Rendezvous`], [`SharedMemoryError::Device`], [`SharedMemoryError::Image`],
/// [`SharedMemoryError::OtherSession`], [`SharedMemoryError::System`]; some of it is there then.
pub(crate) fn restore(
    registry: &mut Registry,
    on: &Device,
    state: &SharedState,
    from: &Source<'_>,
    limit: &Limit,
) -> Result<(ReadStats, Option<RestoreParticipant>), SharedMemoryError> {
    let mut memory = wanted(registry, state)?;
    // All members have the same list: if it is empty, no member joins a rendezvous.
    let is_shared = !state.objects.is_empty();
    let others = state.order.as_ref().filter(|order| is_shared && order.members.len() > 1);
    let Some(order) = others else {
        for piece in &mut memory {
            make(registry, on, piece, from)?;
        }
        let stats = fill(state, &memory, from, from.plain, limit)?;
        adopt(registry, on, memory)?;
        return Ok((stats, None));
    };
    let patience = Duration::from_millis(order.patience_ms);
    let act = "find the directory where the session meets";
    let nowhere = || system(act)(std::io::ErrorKind::NotFound.into());
    let directory = from.directory.ok_or_else(nowhere)?.join(&order.from_image);
    let point = RendezvousPoint::of(&directory)?;
    let names: Vec<String> = order.members.iter().map(|member| member.name.clone()).collect();
    let (client, coordinator) = point.join(&order.name, &names, patience, limit)?;
    let ids: Vec<DmabufId> = memory.iter().map(|piece| piece.object.dmabuf).collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (mut piece, is_ours) in memory.into_iter().zip(client.claim(&ids)?) {
        if is_ours {
            make(registry, on, &mut piece, from)?;
            ours.push(piece);
        } else {
            theirs.push(piece);
        }
    }
    let mut stats = fill(state, &ours, from, from.plain, limit)?;
    let put = |piece: &Memory<'_>| match &piece.file {
        Some(file) => client.put(piece.object.dmabuf, file.as_fd()),
        None => Ok(()),
    };
    ours.iter().try_for_each(put)?;
    for mut piece in theirs {
        match client.fetch(piece.object.dmabuf, patience, limit)? {
            Claim::Found(file) => piece.file = Some(file),
            Claim::Make => {
                make(registry, on, &mut piece, from)?;
                let filled = fill(state, std::slice::from_ref(&piece), from, &[], limit)?;
                stats.content_bytes += filled.content_bytes;
                stats.read_bytes += filled.read_bytes;
                put(&piece)?;
            }
        }
        ours.push(piece);
    }
    adopt(registry, on, ours)?;
    Ok((stats, Some(RestoreParticipant { client, coordinator })))
}

/// The session's memory that this process had: its buffer objects, and what placeholders stand for.
fn wanted<'a>(registry: &Registry, state: &'a SharedState) -> Result<Vec<Memory<'a>>, SharedMemoryError> {
    let placeholders = placeholders().map_err(system("look at the process's descriptors"))?;
    let placeholders: BTreeSet<DmabufId> =
        placeholders.into_iter().map(|placeholder| placeholder.dmabuf).collect();
    if let Some(unknown) = placeholders.iter().find(|id| !state.objects.contains_key(id)) {
        tracing::error!(target: "checkpoint", %unknown, "a DMABuf that came after the session was agreed on is lost");
    }
    let piece = |object: &'a Object| {
        let keys = bos_of(registry, object.dmabuf);
        let is_ours = !keys.is_empty() || placeholders.contains(&object.dmabuf);
        is_ours.then_some(Memory { object, keys, file: None })
    };
    Ok(state.objects.values().filter_map(piece).collect())
}

/// Makes memory, by the buffer object that it was first if that is this process's.
fn make(
    registry: &mut Registry,
    on: &Device,
    piece: &mut Memory<'_>,
    from: &Source<'_>,
) -> Result<(), SharedMemoryError> {
    forget(registry, on, &piece.keys)?;
    let is_first = |key: &&BoKey| registry.bos.get(**key).is_some_and(|bo| bo.state.kind != BoKind::Imported);
    let first = piece.keys.iter().find(is_first).copied();
    if let Some(bo) = first.and_then(|key| registry.bos.get_mut(key)) {
        on.create_bo(bo).map_err(device("to make shared memory again"))?;
        piece.file = Some(on.export_bo(bo).map_err(device("a DMABuf of shared memory"))?);
        return Ok(());
    }
    let Object { bytes, flags, home, .. } = piece.object;
    let at_home = home.as_ref().and_then(|home| from.homes.iter().position(|uuid| uuid == home));
    let imported = piece.keys.first().and_then(|key| registry.bos.get(*key)).map(|bo| bo.state.agent);
    // There are at most 64 agents.
    let agent = at_home.map(|at| AgentIndex(count(at))).or(imported).unwrap_or(AgentIndex(0));
    let kind = if flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0 { BoKind::Vram } else { BoKind::Gtt };
    let mut bo = Bo::new(BoState {
        kind,
        role: BoRole::User,
        bytes: *bytes,
        va: 0,
        flags: *flags,
        agent,
        mapped: Vec::new(),
        for_copies: Vec::new(),
        cpu_mapped: false,
        sharing: None,
        label: None,
    });
    piece.file = Some(on.make_dmabuf(&mut bo).map_err(device("to make shared memory again"))?);
    Ok(())
}

/// Frees what a failed tear-down has left in the driver: it is not the memory that the others get.
fn forget(registry: &mut Registry, on: &Device, keys: &[BoKey]) -> Result<(), SharedMemoryError> {
    for key in keys {
        if let Some(bo) = registry.bos.get_mut(*key).filter(|bo| bo.kernel.is_some()) {
            on.destroy_bo(bo).map_err(device("to free a shared buffer"))?;
        }
    }
    Ok(())
}

/// Fills memory that was just made, and `plain` memory with the first extents of this process's image.
fn fill(
    state: &SharedState,
    made: &[Memory<'_>],
    from: &Source<'_>,
    plain: &[Option<Extent<'_>>],
    limit: &Limit,
) -> Result<ReadStats, SharedMemoryError> {
    let mut views = BTreeMap::<&str, BTreeMap<String, View>>::new();
    for Memory { object, file, .. } in made {
        let Some(file) = file else { continue };
        let view = View::of(file.as_fd(), object.bytes).map_err(system("map shared memory to fill it"))?;
        views.entry(&object.saver).or_default().insert(object.extent(), view);
    }
    let own = state.order.as_ref().map(|order| order.name.as_str());
    let none = BTreeMap::new();
    let mut stats = ReadStats::default();
    let mut add = |filled: ReadStats| {
        stats.content_bytes += filled.content_bytes;
        stats.read_bytes += filled.read_bytes;
    };
    // Without a session all is in this process's image.
    let is_own = |saver: &str| own.is_none_or(|own| own == saver);
    let ours = views.iter().find(|(saver, _)| is_own(saver)).map_or(&none, |(_, views)| views);
    if !plain.is_empty() || !ours.is_empty() {
        let mut extents = extents_of(from.names, ours);
        for (place, extent) in extents.iter_mut().zip(plain) {
            *place = *extent;
        }
        add(from.image.fill_some(&extents, limit)?);
    }
    for (saver, views) in views.iter().filter(|(saver, _)| !is_own(saver)) {
        let (image, names) = image_of(state, saver, from)?;
        add(image.fill_some(&extents_of(&names, views), limit)?);
    }
    Ok(stats)
}

fn extents_of<'e>(names: &[String], views: &BTreeMap<String, View>) -> Vec<Option<Extent<'e>>> {
    names.iter().map(|name| views.get(name).map(View::extent)).collect()
}

/// Another member's image, and the names of its extents.
fn image_of(
    state: &SharedState,
    saver: &str,
    from: &Source<'_>,
) -> Result<(Image, Vec<String>), SharedMemoryError> {
    let unknown = || SharedMemoryError::NoImage { member: saver.to_owned() };
    let order = state.order.as_ref().ok_or_else(unknown)?;
    let member = order.members.iter().find(|member| member.name == saver).ok_or_else(unknown)?;
    let directory = from.directory.ok_or_else(unknown)?;
    let path: PathBuf = directory.join(&order.from_image).join(&member.image).join(IMAGE_FILE);
    let image = Image::open(&path)?;
    let metadata: MemberMetadata = image.metadata()?;
    let found = metadata.sharing.and_then(|sharing| sharing.order).map(|order| order.id);
    if found.as_ref() != Some(&order.id) {
        return Err(SharedMemoryError::OtherSession { path, found, wanted: order.id.clone() });
    }
    Ok((image, metadata.extents))
}

/// Makes all buffer objects of memory that is there, and puts it under its descriptors' numbers.
fn adopt(registry: &mut Registry, on: &Device, memory: Vec<Memory<'_>>) -> Result<(), SharedMemoryError> {
    let mut files = BTreeMap::new();
    for Memory { object, keys, file } in memory {
        let Some(file) = file else { continue };
        let dmabuf = identify(&file).map_err(|errno| system("look at shared memory")(errno.into()))?;
        for key in keys {
            let Some(bo) = registry.bos.get_mut(key) else { continue };
            if bo.kernel.is_none() {
                on.import_bo(bo, file.as_fd()).map_err(device("to import shared memory again"))?;
            }
            // The keys of all were found by the old identities.
            bo.state.sharing = bo.state.sharing.map(|sharing| Sharing { dmabuf, ..sharing });
        }
        files.insert(object.dmabuf, file);
    }
    restore_descriptors(|dmabuf| files.get(&dmabuf)?.try_clone().ok())
        .map_err(system("replace placeholders by their DMABufs"))
}
