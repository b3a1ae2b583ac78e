// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects at addresses that held others: the device runs what was loaded last.

use std::time::Duration;

use crate::context::memory::mapped::view;
use crate::testing::runtime;
use crate::*;

const LONG: Duration = Duration::from_secs(10);
const BYTES: u64 = 4096;
const S_ENDPGM: u32 = 0xbfb0_0000;

fn object() -> &'static [u8] {
    device_lib::object_for("gfx1100").unwrap()
}

/// Bytes at the start of a loaded kernel's code.
fn code(kernel: &Kernel) -> [u8; 64] {
    let mut bytes = [0; 64];
    view(kernel.entry_va(), 64).unwrap().read(0, &mut bytes);
    bytes
}

/// The device library with a copy kernel that ends at once.
fn object_without_copies(agent: &Agent) -> Vec<u8> {
    let code = code(&Executable::load(agent, object()).unwrap().kernel(device_lib::COPY).unwrap());
    let mut file = object().to_vec();
    let at = file.windows(code.len()).position(|window| window == code).unwrap();
    file[at..at + 4].copy_from_slice(&S_ENDPGM.to_le_bytes());
    file
}

/// A device with one queue, and what a copy kernel copies there.
struct Setup {
    agent: Agent,
    queue: Queue,
    to: Buffer,
    from: Buffer,
}

impl Setup {
    fn new(runtime: &Runtime) -> Self {
        let agent = runtime.agent(0).unwrap();
        let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
        let [to, from] = [0u8, 7].map(|byte| {
            let buffer = runtime.gtt().alloc(BYTES).unwrap();
            buffer.write(0, &[byte; BYTES as usize]).unwrap();
            buffer
        });
        Setup { agent, queue, to, from }
    }

    fn load(&self, file: &[u8]) -> Kernel {
        Executable::load(&self.agent, file).unwrap().kernel(device_lib::COPY).unwrap()
    }

    /// Whether this kernel copies.
    fn copies(&self, kernel: &Kernel) -> bool {
        self.to.write(0, &[0; BYTES as usize]).unwrap();
        let launch = device_lib::copy(self.to.va(), self.from.va(), BYTES).unwrap();
        let dispatch = self.queue.dispatch(kernel).grid(launch.grid).block(launch.workgroup);
        dispatch.raw_kernarg(&launch.arguments.to_bytes()).submit().unwrap();
        self.queue.wait_idle(Some(LONG)).unwrap();
        let mut found = [0; BYTES as usize];
        self.to.read(0, &mut found).unwrap();
        assert!(found == [0; BYTES as usize] || found == [7; BYTES as usize]);
        found[0] == 7
    }
}

#[test]
fn code_at_the_address_of_unloaded_code_is_what_runs() {
    let (runtime, _) = runtime(1);
    let setup = Setup::new(&runtime);
    let without = object_without_copies(&setup.agent);
    let first = setup.load(&without);
    let place = first.object_va();
    assert!(!setup.copies(&first));
    drop(first);
    let second = setup.load(object());
    assert_eq!(second.object_va(), place, "the arena gives the address again");
    assert!(setup.copies(&second), "the agent ran the code that was unloaded");
}

#[test]
fn code_written_over_other_code_runs_after_an_invalidation() {
    let (runtime, _) = runtime(1);
    let setup = Setup::new(&runtime);
    let kernel = setup.load(object());
    assert!(setup.copies(&kernel));
    view(kernel.entry_va(), 64).unwrap().write(0, &S_ENDPGM.to_le_bytes());
    assert!(setup.copies(&kernel), "a store does not reach the instruction caches");
    setup.agent.invalidate_code().unwrap();
    assert!(!setup.copies(&kernel));
}

#[test]
fn caches_are_invalidated_only_where_code_was_unloaded_and_can_run() {
    let (runtime, driver) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let made = || driver.created().len();
    // Unloaded at once; nothing can have run.
    drop(Executable::load(&agent, object()).unwrap());
    let kernel = Executable::load(&agent, object()).unwrap();
    assert_eq!(made(), 0, "no queue can run it yet");
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    assert_eq!(made(), 2, "the first queue, and one for the invalidation");
    let _second = Queue::create(&agent, QueueOptions::default()).unwrap();
    assert_eq!(made(), 3, "the caches are valid");
    let before = driver.counts();
    drop(kernel);
    let _kernel = Executable::load(&agent, object()).unwrap();
    assert_eq!(made(), 4, "code was unloaded before");
    assert_eq!(driver.counts().2, before.2, "the queue for the invalidation is gone");
    drop(queue);
}

#[test]
fn load_whose_invalidation_fails_is_refused_and_leaves_nothing() {
    let (runtime, driver) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let _queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    drop(Executable::load(&agent, object()).unwrap());
    let before = driver.counts();
    driver.fail_once(kfd::sys::AMDKFD_IOC_CREATE_QUEUE, kfd::Errno::ENOMEM);
    let error = Executable::load(&agent, object()).unwrap_err();
    assert!(matches!(error, LoadError::CodeCaches(CodeCacheError::Queue(_))), "{error}");
    let text = explain(&error);
    assert!(text.starts_with("The agent's instruction caches could not be invalidated: "), "{text}");
    assert_eq!((driver.counts().0, driver.counts().2), (before.0, before.2));
    Executable::load(&agent, object()).unwrap();
}

#[test]
fn restore_invalidates_what_agents_fetched_where_code_is_loaded() {
    let (runtime, driver) = runtime(1);
    let setup = Setup::new(&runtime);
    let kernel = setup.load(object());
    assert!(setup.copies(&kernel));
    let directory = tempfile::tempdir().unwrap();
    let made = driver.created().len();
    runtime.lock(checkpoint::Mode::Drain, LONG).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(driver.created().len(), made + 2, "the queue, and one for the invalidation");
    assert_eq!(driver.counts().2, 1);
    assert!(setup.copies(&kernel));
}
