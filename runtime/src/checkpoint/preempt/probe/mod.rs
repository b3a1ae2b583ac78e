// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this machine's driver can restore preempted queues: known from its sources, or tried.
//!
//! A process whose queues cannot be restored is lost, because CRIU kills it after the dump. So nothing is inferred from
//! a version number that a later kernel may have for another reason: where no released kernel is known to be able to,
//! the round trip is made with a queue of its own ([`round_trip`]), in forks of this process ([`child`]).
//!
//! What is known, from Linux 6.12 to 7.3 (KFD 1.17 to 1.23):
//! * Chips whose scheduler is not on the GPU (gfx9, gfx10) are restored.
//! * Chips with a microengine scheduler (MES) are not: `kfd_criu_restore_queue` (`kfd_process_queue_manager.c`) passes
//!   no write pointer buffer. 7.3 answers EINVAL; 6.12 follows a null pointer in the kernel, so it is not tried there.
//! * Of several XCCs only the first one's save area is in our images, and kernels before "Fix checkpoint-restore on
//!   multi-xcc" (2025) mix their descriptors up.
//!
//! INVARIANT: only what can be told with certainty is kept: a queue that worked, or a refusal by an errno that does not
//! depend on the moment. Everything else is tried again.

mod child;
mod record;
mod round_trip;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kfd::Errno;
use parking_lot::Mutex;
use queues::target::{CriuSupport, Target};
use stasis_protocol::Limit;

pub use self::child::ForkError;
use self::child::in_fork;
use self::record::Verdict;
pub use self::round_trip::Step;
use self::round_trip::{Refusal, Subject};
use super::error::Unavailable;
use super::has_capability;
use crate::context::agent::info::AgentInfo;
use crate::context::device::Device;
use crate::context::memory::window;

/// The last KFD interface whose kernels are known not to restore queues of MES chips: 1.x, Linux 7.3.
pub const LAST_KFD_MINOR_WITHOUT_MES: u32 = 23;

/// TIMEOUT: how long a round trip may take on a busy machine, if the lock's deadline is later.
const ROUND_TRIP: Duration = Duration::from_secs(20);

/// What this process has found or read, by subject. A subject names the boot, so that a copy of the process on another
/// machine looks again.
static KNOWN: Mutex<Vec<(String, Verdict)>> = Mutex::new(Vec::new());

/// Makes sure that the driver can restore this process's queues; tries it if it is not known yet.
///
/// # Errors
/// [`Unavailable`]: it cannot, or it could not be tried.
pub(super) fn make_sure(on: &Device, limit: &Limit) -> Result<(), Unavailable> {
    for at in unknown(on)? {
        if !has_capability() {
            return Err(Unavailable::NotPermitted);
        }
        let target = on.nodes()[at].info.target();
        let subject = subject(on, target);
        let directory = record::directory().filter(|_| is_hardware(on));
        let verdict = found_or(&subject, directory.as_deref(), || try_it(on, at, limit))
            .map_err(|failure| failure.unavailable(target))?;
        judge(verdict, on.interface_minor(), target)?;
    }
    Ok(())
}

/// What is known already; tries nothing.
///
/// # Errors
/// [`Unavailable`].
pub(super) fn recall(on: &Device) -> Result<(), Unavailable> {
    for at in unknown(on)? {
        let target = on.nodes()[at].info.target();
        let directory = record::directory().filter(|_| is_hardware(on));
        if let Some(verdict) = recorded(&subject(on, target), directory.as_deref()) {
            judge(verdict, on.interface_minor(), target)?;
        }
    }
    Ok(())
}

/// The agents for which it must be tried, one of each chip.
fn unknown(on: &Device) -> Result<Vec<usize>, Unavailable> {
    let minor = on.interface_minor();
    let mut tried: Vec<(usize, &'static str)> = Vec::new();
    for (at, node) in on.nodes().iter().enumerate() {
        let (target, xccs) = (node.info.target(), node.info.geometry().num_xcc);
        judge_by_name(target, xccs, minor)?;
        if target.mes && tried.iter().all(|(_, name)| *name != target.name) {
            tried.push((at, target.name));
        }
    }
    Ok(tried.into_iter().map(|(at, _)| at).collect())
}

/// What is known of a chip without trying.
fn judge_by_name(target: &Target, xccs: u32, minor: u32) -> Result<(), Unavailable> {
    if xccs > 1 {
        return Err(Unavailable::SeveralXccs { target: target.name, xccs });
    }
    if target.criu == CriuSupport::WholeChip {
        return Err(Unavailable::PartOfChip { target: target.name });
    }
    if target.mes && minor <= LAST_KFD_MINOR_WITHOUT_MES {
        return Err(Unavailable::Kernel { minor, target: target.name, last: LAST_KFD_MINOR_WITHOUT_MES });
    }
    Ok(())
}

fn judge(verdict: Verdict, minor: u32, target: &'static Target) -> Result<(), Unavailable> {
    match verdict {
        Verdict::Restores => Ok(()),
        Verdict::Refuses { step, errno, text } => Err(Unavailable::Refused {
            minor,
            target: target.name,
            step,
            errno: Errno::from_raw(errno),
            text,
        }),
    }
}

/// Whether the kernel drives it. A software device is another one in each of its processes, and not kept on disk.
fn is_hardware(on: &Device) -> bool {
    on.transport().name() == "kfd"
}

/// What a verdict is about: this boot, this kernel and driver, this chip.
fn subject(on: &Device, target: &Target) -> String {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().replace('\n', " ");
    format!(
        "boot {}\nkernel {} {}\nmodule {} {}\ndevice {}\nKFD 1.{}\ntarget {}",
        line("/proc/sys/kernel/random/boot_id"),
        line("/proc/sys/kernel/osrelease"),
        line("/proc/sys/kernel/version"),
        // Another build of the driver can be loaded without a boot.
        line("/sys/module/amdgpu/version"),
        line("/sys/module/amdgpu/srcversion"),
        on.transport().name(),
        on.interface_minor(),
        target.name
    )
}

/// Why there is no verdict, or none to keep.
#[derive(Debug)]
enum Failure {
    Fork(ForkError),
    Refusal(Refusal),
}

impl Failure {
    fn unavailable(self, target: &'static Target) -> Unavailable {
        match self {
            Self::Fork(source) => Unavailable::NotTried { target: target.name, source },
            Self::Refusal(Refusal { step: Step::Checkpoint, errno, .. })
                if [Errno::EACCES, Errno::EPERM].contains(&Errno::from_raw(errno)) =>
            {
                Unavailable::NotPermitted
            }
            Self::Refusal(Refusal { step, errno, text }) => {
                Unavailable::Inconclusive { target: target.name, step, errno: Errno::from_raw(errno), text }
            }
        }
    }
}

fn recorded(subject: &str, directory: Option<&Path>) -> Option<Verdict> {
    let own = KNOWN.lock().iter().find(|(known, _)| known == subject).map(|(_, verdict)| verdict.clone());
    own.or_else(|| record::read(directory?, subject))
}

/// The recorded verdict on `subject`, else that of `tried`, which is recorded.
fn found_or(
    subject: &str,
    directory: Option<&Path>,
    tried: impl FnOnce() -> Result<Verdict, Failure>,
) -> Result<Verdict, Failure> {
    if let Some(verdict) = recorded(subject, directory) {
        return Ok(verdict);
    }
    let verdict = tried()?;
    KNOWN.lock().push((subject.to_owned(), verdict.clone()));
    if let Some(directory) = directory
        && let Err(error) = record::write(directory, subject, &verdict)
    {
        let directory = directory.display();
        tracing::debug!(target: "checkpoint", %error, %directory, "what the probe found is not kept");
    }
    Ok(verdict)
}

/// Makes the round trip for the agent at `at`.
fn try_it(on: &Device, at: usize, limit: &Limit) -> Result<Verdict, Failure> {
    let deadline = limit.deadline(ROUND_TRIP);
    let agents: Vec<Arc<AgentInfo>> = on.nodes().iter().map(|node| Arc::clone(&node.info)).collect();
    let window = window::reserve_any().map_err(|error| {
        let text = error.to_string();
        Failure::Refusal(Refusal { step: Step::Prepare, errno: 0, text })
    })?;
    let subject = Subject { transport: on.transport(), agents: &agents, at, base: window.base };
    let dumped = in_fork(deadline, limit, || subject.dump());
    let outcome = dumped.and_then(|dumped| match dumped {
        Ok(dumped) => in_fork(deadline, limit, || subject.restore(&dumped)),
        Err(refusal) => Ok(Err(refusal)),
    });
    window::release(window);
    match outcome.map_err(Failure::Fork)? {
        Ok(()) => Ok(Verdict::Restores),
        Err(refusal) => lasting(refusal).map_err(Failure::Refusal),
    }
}

/// The verdict that a refusal is, if the driver would refuse again.
fn lasting(refusal: Refusal) -> Result<Verdict, Refusal> {
    const ALWAYS: [Errno; 4] = [Errno::EINVAL, Errno::ENOSYS, Errno::ENOTTY, Errno::EOPNOTSUPP];
    match refusal.step != Step::Prepare && ALWAYS.contains(&Errno::from_raw(refusal.errno)) {
        true => Ok(Verdict::Refuses { step: refusal.step, errno: refusal.errno, text: refusal.text }),
        false => Err(refusal),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn target(name: &str) -> &'static Target {
        Target::by_name(name).unwrap()
    }

    #[test]
    fn released_kernels_are_judged_by_name_and_newer_ones_are_tried() {
        for minor in [17, 22, LAST_KFD_MINOR_WITHOUT_MES] {
            let refused = judge_by_name(target("gfx1100"), 1, minor).unwrap_err();
            assert!(matches!(refused, Unavailable::Kernel { last: 23, .. }), "{refused:?}");
            let text = refused.to_string();
            assert!(text.contains("not tried") && text.contains(&format!("1.{minor}")), "{text}");
            judge_by_name(target("gfx90a"), 1, minor).unwrap();
            judge_by_name(target("gfx1030"), 1, minor).unwrap();
        }
        judge_by_name(target("gfx1100"), 1, LAST_KFD_MINOR_WITHOUT_MES + 1).unwrap();
        for minor in [17, 24, 99] {
            let refused = judge_by_name(target("gfx942"), 8, minor).unwrap_err();
            assert!(matches!(refused, Unavailable::SeveralXccs { xccs: 8, .. }), "{refused:?}");
            let refused = judge_by_name(target("gfx942"), 1, minor).unwrap_err();
            assert!(matches!(refused, Unavailable::PartOfChip { target: "gfx942" }), "{refused:?}");
        }
    }

    #[test]
    fn second_question_makes_no_children() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("stasis");
        let tries = Cell::new(0);
        let ask = |subject: &str, directory: Option<&Path>| {
            found_or(subject, directory, || {
                tries.set(tries.get() + 1);
                Ok(Verdict::Restores)
            })
        };
        let subject = "second_question_makes_no_children";
        for _ in 0..2 {
            assert_eq!(ask(subject, Some(&directory)).unwrap(), Verdict::Restores);
        }
        assert_eq!(tries.get(), 1);
        // Another process, which has the file only.
        KNOWN.lock().retain(|(known, _)| known != subject);
        ask(subject, Some(&directory)).unwrap();
        assert_eq!(tries.get(), 1);
        // A file that says something else.
        let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, "stasis restore probe 1\n\"Restores\"\n").unwrap();
        ask(subject, Some(&directory)).unwrap();
        assert_eq!(tries.get(), 2);
        ask("another boot", None).unwrap();
        assert_eq!(tries.get(), 3);
    }

    #[test]
    fn failure_that_may_pass_is_not_kept() {
        let subject = "failure_that_may_pass_is_not_kept";
        let refusal = |step, errno: Errno| Refusal { step, errno: errno as i32, text: "no".to_owned() };
        for (step, errno) in
            [(Step::Prepare, Errno::EINVAL), (Step::Restore, Errno::ENOMEM), (Step::Packet, Errno::ETIMEDOUT)]
        {
            let tried = || lasting(refusal(step, errno)).map_err(Failure::Refusal);
            let failure = found_or(subject, None, tried).unwrap_err().unavailable(target("gfx1100"));
            assert!(matches!(failure, Unavailable::Inconclusive { .. }), "{failure:?}");
        }
        let silent = || Err(Failure::Fork(ForkError::Ended));
        let failure = found_or(subject, None, silent).unwrap_err().unavailable(target("gfx1100"));
        assert!(matches!(failure, Unavailable::NotTried { .. }), "{failure:?}");
        let forbidden = || lasting(refusal(Step::Checkpoint, Errno::EPERM)).map_err(Failure::Refusal);
        let failure = found_or(subject, None, forbidden).unwrap_err().unavailable(target("gfx1100"));
        assert!(matches!(failure, Unavailable::NotPermitted), "{failure:?}");
        let refused = || lasting(refusal(Step::Restore, Errno::EINVAL)).map_err(Failure::Refusal);
        let verdict = found_or(subject, None, refused).unwrap();
        let refused = judge(verdict, 24, target("gfx1100")).unwrap_err();
        assert!(matches!(refused, Unavailable::Refused { errno: Errno::EINVAL, .. }), "{refused:?}");
        let last = found_or(subject, None, || unreachable!("it is known")).unwrap();
        assert!(matches!(last, Verdict::Refuses { errno: 22, .. }), "{last:?}");
    }
}
