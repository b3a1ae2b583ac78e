// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trap handler of an agent: code that runs when one of its waves traps, reports why, and halts the wave.
//!
//! Without one the driver's own handler skips every `s_trap` and halts other waves without a word
//! (`cwsr_trap_handler_gfx10.asm`, `L_NO_NEXT_TRAP`). The driver has to be told before there is a queue, and after every
//! restore: its CRIU state does not have the handler (`kfd_chardev.c`, `criu_restore_devices`).
//!
//! INVARIANT: what the driver was told is the address of code that stays mapped for as long as the agent has queues.

use crate::context::device::Device;
use crate::context::error::DeviceError;
use crate::context::memory::mapped::view;
use crate::context::memory::request::Request;
use crate::context::registry::Registry;
use crate::context::registry::state::{AgentIndex, BoKey, BoRole};

/// Instruction prefetch reads on from the last instruction: a page more than there is code, at least.
const PAGE: u64 = 4096;

/// Sees to it that an agent has its trap handler: makes the memory if there is none, writes the code, and tells the driver.
/// Nothing happens if this device was told.
///
/// # Errors
/// [`DeviceError`]; queues must not be made then.
pub fn set_trap_handler(
    registry: &mut Registry,
    device: &Device,
    agent: AgentIndex,
) -> Result<(), DeviceError> {
    let node = device.node(agent)?;
    if node.has_trap_handler() {
        return Ok(());
    }
    let target = node.info.target().name;
    let code = match device_lib::trap_handler_for(target) {
        Ok(code) => code,
        Err(error) => {
            tracing::warn!(target: "queues", %error, "no trap handler: what traps is not reported");
            return Ok(());
        }
    };
    let bytes = (code.len() as u64).next_multiple_of(PAGE) + PAGE;
    let key = match registry.fixtures.trap_handlers.get(&agent) {
        Some(key) => *key,
        None => make(registry, device, agent, bytes)?,
    };
    let absent = || DeviceError::Absent { what: "the memory of the trap handler" };
    let state = &registry.bos.get(key).ok_or_else(absent)?.state;
    let memory = view(state.va, state.bytes).filter(|memory| memory.bytes() >= bytes).ok_or_else(absent)?;
    memory.write(0, code);
    device.set_trap_handler(agent, state.va)
}

fn make(
    registry: &mut Registry,
    device: &Device,
    agent: AgentIndex,
    bytes: u64,
) -> Result<BoKey, DeviceError> {
    let state = Request::queue_memory(BoRole::TrapHandler, bytes, agent).into_state();
    let full = |_| DeviceError::Absent { what: "room for the trap handler in the window of addresses" };
    let key = registry.add_bo(state).map_err(full)?;
    let absent = DeviceError::Absent { what: "the memory of the trap handler" };
    let made = registry.bos.get_mut(key).ok_or(absent).and_then(|bo| device.create_bo(bo));
    if let Err(error) = made {
        registry.remove_bo(key);
        return Err(error);
    }
    registry.tally.settle();
    registry.fixtures.trap_handlers.insert(agent, key);
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::checkpoint::Mode;
    use crate::testing::runtime;
    use crate::{Queue, QueueOptions, Signal};

    #[test]
    fn driver_has_the_handler_before_the_first_queue_and_after_every_restore() {
        let (runtime, kernel) = runtime(1);
        assert_eq!(kernel.trap_handlers(), []);
        let agent = runtime.agent(0).unwrap();
        let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
        let _second = Queue::create(&agent, QueueOptions::default()).unwrap();
        let [(code, 0)] = kernel.trap_handlers()[..] else { panic!("{:?}", kernel.trap_handlers()) };
        assert!(code.is_multiple_of(4096));

        let directory = tempfile::tempdir().unwrap();
        runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
        runtime.checkpoint(directory.path()).unwrap();
        let made = kernel.created().len();
        runtime.restore(None).unwrap();
        runtime.unlock().unwrap();
        assert_eq!(kernel.trap_handlers()[1..], [(code, made)], "before the queues are made again");

        let done = Signal::new(&runtime, 1).unwrap();
        queue.barrier(&[], Some(&done)).unwrap();
        done.wait_done(Some(Duration::from_secs(60))).unwrap();
    }
}
