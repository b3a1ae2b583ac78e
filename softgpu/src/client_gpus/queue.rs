// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue on the hardware: one thread that executes its packets until the driver takes it off.
//!
//! INVARIANT: a [`Queue`] is made of a descriptor and the client's memory, and leaves nothing but these behind: nothing
//! else is kept of a queue that was stopped. The driver waits for the thread, the thread never waits for the driver.
//!
//! ```text
//!   descriptor, save area ──new──► on the hardware ──save: pause waves──► descriptor, save area
//!                                   │ exception
//!                                   └──► halted (its descriptor says so, and it stays halted)
//! ```

use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use parking_lot::{Condvar, Mutex};
use queues::aql::ExceptionCode;
use softgpu_waves::Control;

use super::core::{Core, Exit};
use super::gpu::Gpu;
use super::mqd;
use super::queue_context::{Halt, QueueContext};
use super::raised::Raised;
use super::save;
use super::xccs::{SplitWaves, Wave};
use crate::hardware::{HwQueue, HwQueueKind, Mqd};
use crate::misbehaviour::Misbehaviour;

/// What the thread leaves when it ends.
#[derive(Debug)]
struct Left {
    context: QueueContext,
    halted: Option<Raised>,
}

/// What the driver's side and the queue's thread share.
#[derive(Debug)]
struct Shared {
    core: Core,
    left: Mutex<Option<Left>>,
    changed: Condvar,
}

impl Shared {
    /// The body of the thread. A panic in it halts this queue, not the process.
    fn work(&self, mut context: QueueContext) {
        let stay = std::panic::AssertUnwindSafe(|| context.run(&self.core));
        let exit = std::panic::catch_unwind(stay).unwrap_or_else(|_| {
            tracing::error!(target: "processor", queue = self.core.config.id, "command processor panicked");
            Exit::Raised(Box::new(Raised::packet(ExceptionCode::PreemptionError)))
        });
        let (halted, report) = match exit {
            Exit::Left => (None, None),
            Exit::Raised(raised) => {
                let report = Raised { waves: Vec::new(), ..*raised };
                (Some(*raised), Some(report))
            }
        };
        *self.left.lock() = Some(Left { context, halted });
        self.changed.notify_all();
        // The queue is off the hardware before the exception is reported, because its receiver may stop the queue.
        if let Some(report) = report {
            report.report(&self.core.gpu, self.core.config.id);
            if Misbehaviour::OtherQueues.is_on()
                && let Some(interrupts) = self.core.gpu.interrupts()
            {
                interrupts.hang(self.core.gpu.index);
            }
        }
    }
}

/// The XCCs that have a descriptor of a queue; a copy engine has one.
fn xccs(gpu: &Gpu, config: &HwQueue) -> usize {
    let of_chip = usize::try_from(gpu.chip.xccs.max(1)).unwrap_or(1);
    if config.kind == HwQueueKind::Sdma { 1 } else { of_chip }
}

/// The driver's side of a queue. Dropping it abandons what it runs.
#[derive(Debug)]
pub(super) struct Queue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    /// Puts a queue on the hardware in the state that `mqd` and its save area describe.
    ///
    /// # Errors
    /// `EINVAL` when they describe none, `EFAULT` when the area is not mapped, `ENOMEM` when no thread can be had.
    pub(super) fn new(gpu: Arc<Gpu>, config: HwQueue, mqd: &Mqd) -> Result<Self, Errno> {
        Self::with_control(gpu, config, mqd, Control::new(), false)
    }

    /// A queue that leaves the hardware before it executes anything.
    #[cfg(test)]
    pub(super) fn paused(gpu: Arc<Gpu>, config: HwQueue, mqd: &Mqd) -> Result<Self, Errno> {
        let control = Control::new();
        control.pause();
        Self::with_control(gpu, config, mqd, control, true)
    }

    fn with_control(
        gpu: Arc<Gpu>,
        config: HwQueue,
        mqd: &Mqd,
        control: Control,
        leave: bool,
    ) -> Result<Self, Errno> {
        if mqd.xccs() != xccs(&gpu, &config) {
            return Err(Errno::EINVAL);
        }
        let (context, halted) = if mqd::is_fresh(mqd, config.kind) {
            // The slot may hold what an earlier queue rang.
            gpu.doorbells.reset(config.doorbell_offset);
            (QueueContext::new(config.kind), None)
        } else {
            let area = |xcc| {
                let config = config.of_xcc(xcc).ok_or(Errno::EINVAL)?;
                save::load(&gpu.vm, &config, &mqd.waves_of(xcc))
            };
            let areas = (0..mqd.xccs()).map(area).collect::<Result<_, _>>()?;
            QueueContext::load(&gpu, &config, mqd, areas)?
        };
        gpu.doorbells.watch(config.doorbell_offset);
        let core = Core::new(gpu, config, control, leave);
        let shared = Arc::new(Shared { core, left: Mutex::default(), changed: Condvar::new() });
        if let Some(Halt { code, waves, xcc }) = halted {
            let halted = Some(Raised { code, by_wave: false, fault: None, waves, xcc });
            *shared.left.lock() = Some(Left { context, halted });
            return Ok(Self { shared, thread: None });
        }
        let thread = std::thread::Builder::new()
            .name(format!("queue {}", config.id))
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.work(context)
            })
            .map_err(|_| Errno::ENOMEM);
        if thread.is_err() {
            shared.core.gpu.doorbells.unwatch(config.doorbell_offset);
        }
        Ok(Self { shared, thread: Some(thread?) })
    }

    /// As it was started.
    pub(super) fn config(&self) -> &HwQueue {
        &self.shared.core.config
    }

    /// Takes the queue off the hardware and saves it; its waves go into its save area.
    ///
    /// # Errors
    /// `ETIME` when its waves cannot be preempted or their area is no longer there.
    pub(super) fn save(mut self) -> Result<Box<Mqd>, Errno> {
        self.shared.core.control.pause();
        self.shared.core.wake();
        self.join();
        let left = {
            let mut left = self.shared.left.lock();
            while left.is_none() {
                self.shared.changed.wait(&mut left);
            }
            left.take()
        };
        let Left { context, halted } = left.ok_or(Errno::ETIME)?;
        let Core { gpu, config, .. } = &self.shared.core;
        let mut waves = match &halted {
            Some(_) if Misbehaviour::FaultKernel.is_on() => Vec::new(),
            Some(raised) => {
                vec![raised.waves.iter().map(|wave| (raised.xcc, Wave::Borrowed(wave))).collect()]
            }
            None => context.waves(),
        };
        if Misbehaviour::Preempt.is_on() {
            for (_, wave) in waves.iter_mut().flatten() {
                let mut changed = wave.clone().into_owned();
                changed.vgprs.iter_mut().for_each(|word| *word ^= 1);
                *wave = Wave::Owned(Box::new(changed));
            }
        }
        if halted.is_none()
            && let Some(rsrc1) =
                context.preempted_rsrc1().into_iter().find(|&rsrc1| gpu.chip.hangs(config.kind, rsrc1))
        {
            tracing::error!(target: "processor", gpu = gpu.index, queue = config.id, rsrc1,
                "preempted waves hang: COMPUTE_PGM_RSRC1.PRIV is not as this chip needs it");
            return Err(Errno::ETIME);
        }
        let unfinished = halted.is_none() && context.is_unfinished();
        let split = SplitWaves::new(waves, xccs(gpu, config));
        let mut writer = mqd::Writer::new(config, split.of_xcc.len());
        for (xcc, waves) in split.of_xcc.iter().enumerate() {
            let area = config.of_xcc(xcc).ok_or(Errno::ETIME)?;
            let saved = save::save(&gpu.vm, &area, waves, unfinished).map_err(|error| {
                tracing::error!(target: "processor", queue = config.id, xcc, %error, waves = waves.len(),
                    "waves not saved");
                Errno::ETIME
            })?;
            if saved.is_some() {
                writer.waves(xcc, config, saved);
            }
        }
        context.store(&mut writer, halted.as_ref().map(|raised| raised.code), &split);
        Ok(writer.finish())
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!(target: "processor", queue = self.shared.core.config.id, "queue thread panicked");
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.core.control.abort();
        self.shared.core.wake();
        self.join();
        self.shared.core.gpu.doorbells.unwatch(self.shared.core.config.doorbell_offset);
    }
}
