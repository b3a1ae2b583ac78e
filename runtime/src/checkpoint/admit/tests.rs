// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every rule, both ways, through the topology's text: a process is checkpointed, the machine changes, and the restore
//! is admitted or refused as `docs/admission.md` says; refused, it has changed nothing.

mod copies;
mod perturb;
mod soft;
mod staged;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::perturb::{Expect, Perturbation, perturbations};
use super::rules::PEER_MAPPING;
use super::*;
use crate::checkpoint::{Mode, RestoreOptions, State};
use crate::context::registry::Persist;
use crate::runtime::Runtime;
use crate::signal::Signal;
use crate::testing::TestTransport;
use crate::testing::faulty::descriptors;

/// Checkpoints audit the whole process, so in one process there is one at a time.
static ALONE: Mutex<()> = parking_lot::const_mutex(());

/// A checkpointed process with two agents on a machine that can be changed.
struct Frozen {
    transport: Arc<TestTransport>,
    runtime: Runtime,
    signal: Signal,
    registry: serde_json::Value,
    files: BTreeMap<String, String>,
    directory: tempfile::TempDir,
}

fn registry(runtime: &Runtime) -> serde_json::Value {
    serde_json::to_value(runtime.context().registry.lock().save()).unwrap()
}

impl Frozen {
    /// On a machine with two GPUs, prepared by `prepare`.
    fn new(prepare: impl Fn(&TestTransport)) -> Self {
        let transport = TestTransport::new(2);
        prepare(&transport);
        let runtime =
            Runtime::from_context(&crate::context::open::open(Arc::clone(&transport) as _, None).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let files = transport.sysfs.files();
        let signal = Signal::new(&runtime, 42).unwrap();
        runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
        runtime.checkpoint(directory.path()).unwrap();
        let registry = registry(&runtime);
        Self { transport, runtime, signal, registry, files, directory }
    }

    /// Makes the machine what it was.
    fn put_right(&self) {
        self.transport.sysfs.put_back(self.files.clone());
        self.transport.kernel.set_version(None);
    }

    fn restore(&self, checks: &Checks) -> Result<(), CheckpointError> {
        self.restore_on(Admission { checks: checks.clone(), ..Admission::default() })
    }

    fn restore_on(&self, terms: Admission) -> Result<(), CheckpointError> {
        let admission = Some(terms);
        self.runtime.restore_with(&RestoreOptions { admission, ..RestoreOptions::default() }).map(drop)
    }

    /// The differences for which a restore is refused, after which everything is as before.
    fn refused(&self, checks: &Checks) -> Vec<Difference> {
        let refusal = self.restore(checks).unwrap_err();
        let CheckpointError::Agents { differences } = refusal else { panic!("{refusal:?}") };
        assert_eq!(self.runtime.state(), State::Checkpointed);
        assert_eq!(registry(&self.runtime), self.registry);
        assert_eq!(self.transport.kernel.counts().2, 0, "queues were made");
        differences
    }

    /// Goes on and is checkpointed again.
    fn again(mut self) -> Self {
        self.runtime.unlock().unwrap();
        self.runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
        self.runtime.checkpoint(self.directory.path()).unwrap();
        self.registry = registry(&self.runtime);
        self
    }

    /// Goes on.
    fn go_on(self) {
        self.runtime.unlock().unwrap();
        assert_eq!((self.runtime.state(), self.signal.load().unwrap()), (State::Running, 42));
    }
}

impl Drop for Frozen {
    /// After a failed assertion: handles dropped now would wait at the gate for ever.
    fn drop(&mut self) {
        if self.runtime.state() == State::Checkpointed {
            self.put_right();
            let _ = self.restore(&Checks::default());
        }
        if self.runtime.state() == State::Locked {
            let _ = self.runtime.unlock();
        }
        if self.runtime.state() != State::Running {
            std::process::exit(101);
        }
    }
}

fn explained(case: &Perturbation, differences: &[Difference], rule: Rule) {
    let name = format!("{} {} -> {}", case.property, case.had, case.here);
    // Without its GPU an agent finds only others.
    let others = usize::from(rule.property == "gpus");
    assert_eq!(differences.len(), 1 + others, "{name}: {differences:?}");
    let difference = &differences[0];
    let found = (difference.property, difference.relation, difference.switch);
    assert_eq!(found, (rule.property, rule.relation, rule.switch), "{name}");
    assert_eq!(
        (difference.had.to_string(), difference.here.to_string()),
        (case.had.clone(), case.here.clone())
    );
    let text = difference.to_string();
    let mut words = vec![case.property.to_owned(), format!(" {}", case.had), format!(" {}", case.here)];
    words.extend(rule.switch.map(|switch| format!("set {}=0 to go on anyway", switch.variable())));
    words.extend(rule.staged.then(|| "give --allow-staged".to_owned()));
    if difference.subject != Subject::Machine {
        words.extend(["agent ".to_owned(), "(GPU-a1b200000000000".to_owned()]);
    }
    for word in words {
        assert!(text.contains(&word), "{name}: {text:?} lacks {word:?}");
    }
}

/// Tries one change; says whether the process has come to know another machine by it.
fn attempt(frozen: &Frozen, case: &Perturbation, rule: Rule) -> bool {
    (case.after)(&frozen.transport);
    if case.expect == Expect::Admitted {
        let outcome = frozen.restore(&Checks::default());
        outcome
            .unwrap_or_else(|refusal| panic!("{} {} -> {}: {refusal}", case.property, case.had, case.here));
        return true;
    }
    explained(case, &frozen.refused(&Checks::default()), rule);
    // No other switch helps; its own does.
    for other in Switch::ALL.into_iter().filter(|&switch| Some(switch) != rule.switch) {
        frozen.refused(&Checks::without(other));
    }
    if let Some(switch) = rule.switch {
        frozen.restore(&Checks::without(switch)).unwrap();
        return true;
    }
    if rule.staged {
        frozen.restore_on(Admission { allow_staged: true, ..Admission::default() }).unwrap();
        return true;
    }
    // The same restore succeeds when the machine is right again.
    frozen.put_right();
    frozen.restore(&Checks::default()).unwrap();
    false
}

#[test]
fn every_rule_admits_and_refuses_both_ways_as_documented() {
    let _alone = ALONE.lock();
    // A process has room for some dozens of runtimes: one that still knows the usual machine is used again.
    let mut usual = None;
    // What is mapped is not the machine's: `staged` has the cases.
    for rule in rules().filter(|rule| *rule != PEER_MAPPING) {
        for case in perturbations(rule) {
            let frozen = match &case.before {
                Some(before) => Frozen::new(before),
                None => usual.take().unwrap_or_else(|| Frozen::new(|_| {})),
            };
            let changed = attempt(&frozen, &case, rule);
            if changed || case.before.is_some() {
                frozen.go_on();
            } else {
                usual = Some(frozen.again());
            }
        }
    }
    if let Some(frozen) = usual {
        frozen.restore(&Checks::default()).unwrap();
        frozen.go_on();
    }
}

#[test]
fn every_rule_is_changed_both_ways() {
    for rule in rules().filter(|rule| *rule != PEER_MAPPING) {
        let cases = perturbations(rule);
        let refused = cases.iter().filter(|case| case.expect == Expect::Refused).count();
        assert!(refused >= 1 && cases.len() >= 2 || rule.property == "gpu_id", "{}", rule.property);
        assert_eq!(refused == cases.len(), rule.relation == Relation::Equal, "{}", rule.property);
    }
}

#[test]
fn all_differences_are_named_at_once_and_each_switch_takes_its_own_away() {
    let _alone = ALONE.lock();
    let frozen = Frozen::new(|_| {});
    let [first, second] = ["nodes/1/properties", "nodes/2/properties"];
    frozen.transport.sysfs.change(first, "fw_version", 1);
    frozen.transport.sysfs.change(first, "sdma_fw_version", 2);
    frozen.transport.sysfs.change(first, "capability", 3);
    frozen.transport.sysfs.change(second, "caches_count", 4);
    frozen.transport.sysfs.change(second, "num_gws", 5);
    frozen.transport.sysfs.change(second, "simd_count", 6);
    let named = |differences: &[Difference]| {
        let mut names: Vec<_> = differences.iter().map(|difference| difference.property).collect();
        names.sort_unstable();
        names
    };
    let all = ["caches_count", "capability", "fw_version", "num_gws", "sdma_fw_version", "simd_count"];
    assert_eq!(named(&frozen.refused(&Checks::default())), all);
    let text = frozen.restore(&Checks::default()).unwrap_err().to_string();
    for part in [
        "agent 0 (GPU-a1b2000000000001) had fw_version 2140, here it has 1",
        "agent 1 (GPU-a1b2000000000002)",
    ] {
        assert!(text.contains(part), "{text}");
    }
    for (switch, property) in [
        (Switch::FwVersion, "fw_version"),
        (Switch::SdmaFwVersion, "sdma_fw_version"),
        (Switch::Capability, "capability"),
        (Switch::CachesCount, "caches_count"),
        (Switch::NumGws, "num_gws"),
    ] {
        let left = named(&frozen.refused(&Checks::without(switch)));
        assert!(left.len() == 5 && !left.contains(&property), "{switch}: {left:?}");
    }
    frozen.put_right();
    frozen.restore(&Checks::default()).unwrap();
    frozen.go_on();
}

#[test]
fn refused_process_holds_nothing_and_its_files_are_still_kept() {
    let _alone = ALONE.lock();
    let frozen = Frozen::new(|_| {});
    let before = descriptors();
    frozen.transport.sysfs.change("nodes/2/properties", "device_id", 7);
    for _ in 0..3 {
        frozen.refused(&Checks::default());
    }
    assert_eq!(descriptors(), before);
    // A restore in the same process needs its keeper: had a refusal used it up, this would fail.
    frozen.put_right();
    frozen.restore(&Checks::default()).unwrap();
    frozen.go_on();
}
