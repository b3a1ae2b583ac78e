// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory in a checkpoint: what there is, which processes have it, which one saves it, and from when it is
//! released.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use stasis_protocol::Limit;

use super::barrier::{Barrier, SessionOrder};
use super::descriptors::{Descriptor, View, scan};
use super::graph::{self, bos_of, objects};
use super::holders::outsiders;
use super::in_flight::{InFlight, in_flight};
use super::state::SharedState;
use super::table::{Object, Table};

use parking_lot::Mutex;

use super::error::{SharedMemoryError, device, system};
use crate::context::device::Device;
use crate::context::registry::Registry;
use crate::context::registry::state::DmabufId;
use crate::context::{Context, Layer};
use crate::image::Extent;
use crate::share::rendezvous::Coordinator;

/// The name of a process that is in no session.
const ALONE: &str = "alone";

/// A process about to give its shared memory up.
#[derive(Debug)]
pub(crate) struct Participant<'a> {
    order: Option<&'a SessionOrder>,
    barrier: Option<Barrier<'a>>,
    objects: BTreeMap<DmabufId, Object>,
    /// What this process is to save.
    views: Vec<(DmabufId, View)>,
}

impl<'a> Participant<'a> {
    /// Finds out what is shared, meets the other members and makes sure that nobody else has any of it. The queues are
    /// drained.
    ///
    /// # Errors
    /// [`SharedMemoryError::Session`], [`SharedMemoryError::Outsiders`], [`SharedMemoryError::Hidden`],
    /// [`SharedMemoryError::Device`], [`SharedMemoryError::System`]; nobody gives anything up then.
    pub fn prepare(
        context: &Context,
        registry: &Registry,
        on: &Device,
        order: Option<&'a SessionOrder>,
        limit: &Limit,
    ) -> Result<Self, SharedMemoryError> {
        let descriptors = scan().map_err(system("look at the process's descriptors"))?;
        let waiting = in_flight().map_err(system("look at the process's sockets"))?;
        if let Some(InFlight { socket, dmabuf }) = waiting.first() {
            return Err(SharedMemoryError::InFlight { socket: *socket, dmabuf: *dmabuf });
        }
        let name = order.map_or(ALONE, |order| &order.name).to_owned();
        let table = Table {
            name: name.clone(),
            pid: nix::unistd::getpid().as_raw(),
            holdings: graph::holdings(registry, on, &context.agents, &descriptors)?,
        };
        let own: Vec<DmabufId> = table.holdings.iter().map(|holding| holding.dmabuf).collect();
        let (barrier, tables) = match order {
            Some(order) => {
                let (barrier, tables) = Barrier::join(order, &table, limit)?;
                (Some(barrier), tables)
            }
            None => (None, vec![table]),
        };
        if !own.is_empty() {
            let members: Vec<i32> = tables.iter().map(|table| table.pid).collect();
            let found = outsiders(&own, &members).map_err(system("look who else holds shared memory"))?;
            if !found.is_empty() {
                return Err(SharedMemoryError::Outsiders { holders: found });
            }
        }
        let objects = objects(&tables);
        let views = objects
            .values()
            .filter(|object| object.saver == name)
            .map(|object| Ok((object.dmabuf, view(registry, on, &descriptors, object)?)))
            .collect::<Result<_, SharedMemoryError>>()?;
        Ok(Self { order, barrier, objects, views })
    }

    /// Whether there is something to remember: a session, or memory that others may hold.
    pub fn has_record(&self) -> bool {
        self.order.is_some() || !self.objects.is_empty()
    }

    /// What this process is to save, with the names of the extents.
    pub fn extents(&self) -> impl Iterator<Item = (String, Extent<'static>)> {
        self.views.iter().filter_map(|(id, view)| Some((self.objects.get(id)?.extent(), view.extent())))
    }

    /// What is remembered of it.
    pub fn record(&self) -> SharedState {
        SharedState { order: self.order.cloned(), objects: self.objects.clone() }
    }

    /// The image is complete: waits until all members are as far. From `Ok` on the others count on this process to let
    /// go.
    ///
    /// # Errors
    /// [`SharedMemoryError::Session`]; nobody gives anything up then.
    pub fn commit(&mut self, limit: &Limit) -> Result<(), SharedMemoryError> {
        self.views.clear();
        Ok(self.barrier.take().map_or(Ok(()), |barrier| barrier.commit(limit))?)
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        if let Some(barrier) = self.barrier.take() {
            barrier.abort("it failed before it could let go");
        }
    }
}

/// The bytes of shared memory, which this process holds as a buffer or a descriptor.
fn view(
    registry: &Registry,
    on: &Device,
    descriptors: &[Descriptor],
    object: &Object,
) -> Result<View, SharedMemoryError> {
    let act = "map shared memory to save it";
    let buffer = bos_of(registry, object.dmabuf).into_iter().find_map(|key| registry.bos.get(key));
    if let Some(bo) = buffer {
        let fd = on.export_bo(bo).map_err(device("a DMABuf"))?;
        return View::of(fd.as_fd(), object.bytes).map_err(system(act));
    }
    let descriptor = descriptors.iter().find(|descriptor| descriptor.dmabuf == object.dmabuf);
    let absent = || system(act)(std::io::ErrorKind::NotFound.into());
    View::of(descriptor.ok_or_else(absent)?.borrow(), object.bytes).map_err(system(act))
}

/// The coordinator of a rendezvous, if it runs in this process.
#[derive(Debug, Default)]
pub(crate) struct Coordinating(Mutex<Option<Coordinator>>);

impl Layer for Coordinating {
    fn new(_: usize) -> Self {
        Coordinating::default()
    }
}

/// Keeps the coordinator of a rendezvous until all participants have joined, or the device is closed.
pub(crate) fn keep_coordinator(context: &Context, coordinator: Option<Coordinator>) {
    *context.layer::<Coordinating>().0.lock() = coordinator;
}

/// Ends a rendezvous whose coordinator runs in this process: the coordinator holds memory of the device.
pub(crate) fn end_rendezvous(context: &Arc<Context>) {
    if let Some(coordinator) = context.layer::<Coordinating>().0.lock().take()
        && !coordinator.is_over()
    {
        tracing::warn!(target: "checkpoint", "members of the session it was restored with have not come back yet");
    }
}
