// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime as a whole: life cycles, errors, faults, and a device that comes and goes.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kfd::Errno;
use kfd::sys::{AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, AMDKFD_IOC_CREATE_QUEUE, AMDKFD_IOC_MAP_MEMORY_TO_GPU};
use queues::aql::ExceptionCode;
use softgpu::driver::KernelModel;

use crate::context::handover::{put_device, take_device};
use crate::context::queue::bringup::bring_up;
use crate::testing::{TestTransport, runtime, runtime_on};
use crate::*;

const SOON: Option<Duration> = Some(Duration::from_secs(10));

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn lock(runtime: &Runtime) -> gate::Closed {
    runtime.context().gate.close(soon(), &AtomicBool::new(false)).unwrap()
}

/// Submits one kernel dispatch of the embedded fill kernel over `buffer`.
fn dispatch(agent: &Agent, queue: &Queue, buffer: &Buffer, done: &Signal) -> Result<u64, SubmitError> {
    buffer.note_use(queue.key());
    fill(agent, queue, buffer.va(), done)
}

/// Submits one kernel dispatch that fills the page at `va`.
fn fill(agent: &Agent, queue: &Queue, va: u64, done: &Signal) -> Result<u64, SubmitError> {
    let executable = Executable::load(agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let kernel = executable.kernel(device_lib::FILL).unwrap();
    let fill = device_lib::fill(va, 4096, &[0]).unwrap();
    let arguments = fill.arguments.to_bytes();
    queue
        .dispatch(&kernel)
        .grid(fill.grid)
        .block(fill.workgroup)
        .raw_kernarg(&arguments)
        .completion(done)
        .submit()
}

#[test]
fn open_describes_agents() {
    let (runtime, _) = runtime(2);
    let agents = runtime.agents();
    assert_eq!(agents.len(), 2);
    assert_eq!((agents[1].name(), agents[1].uuid()), ("gfx1100", "GPU-a1b2000000000002"));
    assert_eq!((agents[0].compute_units(), agents[0].vram_bytes()), (96, 25_753_026_560));
}

#[test]
fn buffer_round_trips_bytes_and_frees_once() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let before = kernel.counts().0;
    let buffer = agent.vram().alloc(10_000).unwrap();
    buffer.write(9_990, b"0123456789").unwrap();
    let mut back = [0; 10];
    buffer.read(9_990, &mut back).unwrap();
    assert_eq!(&back, b"0123456789");
    assert!(matches!(buffer.write(9_991, &back), Err(CopyError::Range { offset: 9_991, len: 10_000, .. })));
    buffer.free().unwrap();
    assert!(matches!(buffer.free(), Err(FreeError::Stale { .. })));
    assert!(matches!(buffer.read(0, &mut back), Err(CopyError::Freed { .. })));
    assert_eq!(kernel.counts().0, before);
    drop(agent.vram().alloc(1).unwrap());
    assert_eq!(kernel.counts().0, before);
}

#[test]
fn alloc_too_much_says_how_much_there_is() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let error = agent.vram().alloc(25 << 30).unwrap_err();
    assert!(
        matches!(&error, AllocError::OutOfMemory { wanted, available, agent, .. } if *wanted == 25 << 30 && (23 << 30..24 << 30).contains(available) && agent.starts_with("gfx1100")),
        "{error}"
    );
    assert!(matches!(agent.vram().alloc(2 << 40), Err(AllocError::Address(_))));
    assert!(matches!(agent.vram().alloc(u64::MAX), Err(AllocError::Address(_))));
    assert!(matches!(agent.vram().alloc(0), Err(AllocError::Empty)));
    agent.vram().alloc(1 << 20).unwrap();
}

#[test]
fn queue_runs_barriers_and_leaves_nothing_behind() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let first = Queue::create(&agent, QueueOptions::default()).unwrap();
    drop(first);
    let before = kernel.counts();
    let queue = Queue::create(&agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap();
    let done = Signal::new(&runtime, 200).unwrap();
    for _ in 0..200 {
        while let Err(error) = queue.barrier(&[], Some(&done)) {
            assert!(matches!(error, SubmitError::WouldBlock { .. }), "{error}");
        }
    }
    for mode in [WaitMode::Busy, WaitMode::Auto, WaitMode::Blocked] {
        assert_eq!(done.wait(Condition::Equal(0), SOON, mode).unwrap(), 0);
    }
    queue.wait_idle(SOON).unwrap();
    queue.destroy().unwrap();
    assert!(matches!(queue.destroy(), Err(QueueError::Stale { .. })));
    assert!(matches!(queue.barrier(&[], None), Err(SubmitError::Stale { .. })));
    assert_eq!((kernel.counts().0, kernel.counts().2), (before.0, before.2));
}

#[test]
fn queue_creation_that_fails_leaves_nothing_behind() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    drop(Queue::create(&agent, QueueOptions::default()).unwrap());
    let before = kernel.counts();
    for (cmd, errno) in [
        (AMDKFD_IOC_CREATE_QUEUE, Errno::ENOSPC),
        (AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, Errno::ENOMEM),
        (AMDKFD_IOC_MAP_MEMORY_TO_GPU, Errno::EINVAL),
    ] {
        kernel.fail_once(cmd, errno);
        Queue::create(&agent, QueueOptions::default()).unwrap_err();
        assert_eq!(kernel.counts(), before, "{cmd:#x}");
    }
    let odd = Queue::create(&agent, QueueOptions { packets: 100, ..QueueOptions::default() });
    assert!(matches!(odd, Err(QueueError::Packets { packets: 100, .. })));
    Queue::create(&agent, QueueOptions { scratch_lane_bytes: 256, ..QueueOptions::default() }).unwrap();
}

#[test]
fn blocked_wait_is_woken_by_host_store_and_by_packets() {
    let (runtime, _) = runtime(1);
    let queue = Queue::create(&runtime.agent(0).unwrap(), QueueOptions::default()).unwrap();
    for round in 0..50 {
        let signal = Signal::new(&runtime, 1).unwrap();
        let (waiter, gate) = (signal.clone(), Signal::new(&runtime, 1).unwrap());
        let thread = std::thread::spawn(move || waiter.wait(Condition::LessThan(1), SOON, WaitMode::Blocked));
        if round % 2 == 0 {
            queue.barrier(&[&gate], Some(&signal)).unwrap();
            gate.store(0).unwrap();
        } else {
            signal.add(-1).unwrap();
        }
        assert!(thread.join().unwrap().unwrap() <= 0);
    }
    let signal = Signal::new(&runtime, 5).unwrap();
    let short = Some(Duration::from_millis(20));
    assert!(matches!(
        signal.wait(Condition::Equal(0), short, WaitMode::Blocked),
        Err(WaitError::Timeout { value: 5, .. })
    ));
}

#[test]
fn dispatch_submits_without_ioctl_or_allocation() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let executable = Executable::load(&agent, device_lib::object_for("gfx1100").unwrap()).unwrap();
    let fill = executable.kernel(device_lib::FILL).unwrap();
    let done = Signal::new(&runtime, 1000).unwrap();
    let (calls, block) = (kernel.calls(), [0u8; device_lib::FillArguments::BYTES]);
    let allocations = crate::testing::alloc::count();
    for _ in 0..1000 {
        let dispatch = queue.dispatch(&fill).grid([64, 1, 1]).block([64, 1, 1]).raw_kernarg(&block);
        dispatch.completion(&done).submit().unwrap();
        while queue.0.live.pending() > 900 {
            std::thread::yield_now();
        }
    }
    assert_eq!(crate::testing::alloc::count(), allocations);
    done.wait(Condition::Equal(0), SOON, WaitMode::Busy).unwrap();
    assert_eq!(kernel.calls(), calls);
}

#[test]
fn dispatch_is_checked_before_anything_is_reserved() {
    let (runtime, _) = runtime(2);
    let (agent, other) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let queue =
        Queue::create(&agent, QueueOptions { kernarg_slot_bytes: 64, ..QueueOptions::default() }).unwrap();
    let object = device_lib::object_for("gfx1100").unwrap();
    let fill = Executable::load(&agent, object).unwrap().kernel(device_lib::FILL).unwrap();
    let good = || queue.dispatch(&fill).grid([64, 1, 1]).block([64, 1, 1]);
    let no_grid = queue.dispatch(&fill).submit();
    assert!(matches!(no_grid, Err(SubmitError::NoGrid { .. })));
    assert!(matches!(good().grid([0, 1, 1]).submit(), Err(SubmitError::Launch(LaunchError::Empty { .. }))));
    let wide = good().block([1024, 2, 1]).grid([1024, 2, 1]).submit();
    assert!(matches!(wide, Err(SubmitError::Launch(LaunchError::WorkgroupTooLarge { .. }))));
    let lds = good().dynamic_lds(65 << 10).submit();
    assert!(matches!(lds, Err(SubmitError::Launch(LaunchError::Lds { .. }))));
    let few = good().args(&[Arg::U32(1)]).submit();
    assert!(matches!(few, Err(SubmitError::Arguments(KernargError::Count { found: 1, .. }))));
    let raw = good().raw_kernarg(&[0; 3]).submit();
    assert!(matches!(raw, Err(SubmitError::Arguments(KernargError::RawLength { found: 3, .. }))));
    let buffer = agent.vram().alloc(64).unwrap();
    buffer.free().unwrap();
    let freed = good().args(&[Arg::Buffer(&buffer)]).submit();
    assert!(matches!(freed, Err(SubmitError::FreedBuffer { index: 0, .. })));
    let elsewhere = Executable::load(&other, object).unwrap().kernel(device_lib::FILL).unwrap();
    let elsewhere = queue.dispatch(&elsewhere).grid([1, 1, 1]).submit();
    assert!(matches!(elsewhere, Err(SubmitError::OtherAgent { .. })));
    assert_eq!(queue.write_index().unwrap(), 0);
    assert!(matches!(Executable::load(&agent, b"\x7fELF"), Err(LoadError::CodeObject(_))));
    if let Ok(foreign) = device_lib::object_for("gfx90a") {
        let error = Executable::load(&agent, foreign).unwrap_err();
        assert!(matches!(error, LoadError::CodeObject(CodeObjectError::WrongTarget { .. })), "{error}");
    }
}

#[test]
fn free_of_a_buffer_in_flight_is_refused_then_granted() {
    let (runtime, _) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (buffer, done) = (agent.vram().alloc(4096).unwrap(), Signal::new(&runtime, 1).unwrap());
    let hold = Signal::new(&runtime, 1).unwrap();
    queue.barrier(&[&hold], None).unwrap();
    dispatch(&agent, &queue, &buffer, &done).unwrap();
    assert!(matches!(buffer.free(), Err(FreeError::Pending { .. })));
    assert!(buffer.is_alive());
    assert!(matches!(queue.destroy(), Err(QueueError::Busy { .. })));
    hold.store(0).unwrap();
    done.wait_done(SOON).unwrap();
    // The processor may tell of the packet's end after its kernel's.
    queue.wait_idle(SOON).unwrap();
    buffer.free().unwrap();
}

#[test]
fn queue_exception_fails_its_queue_and_its_waiters_only() {
    // Released kernels take the other queues too.
    let (runtime, _) = runtime_on(TestTransport::under(KernelModel::Fixed, 1));
    let agent = runtime.agent(0).unwrap();
    let bad = Queue::create(&agent, QueueOptions::default()).unwrap();
    let good = Queue::create(&agent, QueueOptions::default()).unwrap();
    let (buffer, done) = (agent.vram().alloc(4096).unwrap(), Signal::new(&runtime, 1).unwrap());
    buffer.note_use(bad.key());
    fill(&agent, &bad, 0xdead_b000, &done).unwrap();
    let error = done.wait(Condition::LessThan(1), SOON, WaitMode::Blocked).unwrap_err();
    let WaitError::Queue(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.memory.unwrap().address, 0xdead_b000);
    assert_eq!(fault.codes, [ExceptionCode::WaveMemoryViolation]);
    assert!(error.to_string().contains("0xdeadb000"), "{error}");
    assert!(matches!(bad.barrier(&[], None), Err(SubmitError::Queue(_))));
    good.barrier(&[], None).unwrap();
    good.wait_idle(SOON).unwrap();
    bad.destroy().unwrap();
    buffer.free().unwrap();
}

#[test]
fn dead_device_fails_calls_and_waits() {
    let (runtime, kernel) = runtime(1);
    let signal = Signal::new(&runtime, 1).unwrap();
    let waiter = signal.clone();
    let thread = std::thread::spawn(move || waiter.wait(Condition::Equal(0), None, WaitMode::Blocked));
    std::thread::sleep(Duration::from_millis(20));
    kernel.kill();
    assert!(matches!(thread.join().unwrap(), Err(WaitError::Lost(_))));
    assert!(matches!(runtime.gtt().alloc(1), Err(AllocError::Lost(_))));
}

#[test]
fn waits_sleep_through_a_device_that_goes_and_comes_back() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let queue = Queue::create(&agent, QueueOptions { packets: 64, ..QueueOptions::default() }).unwrap();
    for _ in 0..70 {
        queue.barrier(&[], None).unwrap();
        queue.wait_idle(SOON).unwrap();
    }
    let index = queue.write_index().unwrap();
    let (mut list, listed) = (CommandList::new(&queue), Signal::new(&runtime, 1).unwrap());
    list.barrier(&[], Some(&listed)).unwrap();
    let hold = Signal::new(&runtime, 1).unwrap();
    let (signal, waiter) = (Signal::new(&runtime, 1).unwrap(), Signal::new(&runtime, 1).unwrap());
    let sleeper = {
        let signal = signal.clone();
        std::thread::spawn(move || signal.wait(Condition::Equal(0), None, WaitMode::Blocked))
    };
    std::thread::sleep(Duration::from_millis(20));
    let context = runtime.context();
    let mut closed = lock(&runtime);
    let device = take_device(context, &mut closed, soon()).unwrap();
    // What a checkpoint does, without the contents: every object goes, then comes back.
    {
        let mut registry = context.registry.lock();
        let registry::Registry { bos, queues, events, .. } = &mut *registry;
        for (_, queue) in queues.iter_mut() {
            queue.state = queue.live.as_ref().unwrap().with_indices(&queue.state);
            queue.live.as_ref().unwrap().detach(&mut closed);
            device.destroy_queue(queue).unwrap();
        }
        events.iter_mut().for_each(|(_, event)| device.destroy_event(event).unwrap());
        let contents: Vec<_> = bos
            .iter_mut()
            .map(|(key, bo)| {
                let bytes = bo.state.role.has_contents().then(|| {
                    let mut bytes = vec![0; bo.state.bytes as usize];
                    context::memory::mapped::view(bo.state.va, bo.state.bytes).unwrap().read(0, &mut bytes);
                    bytes
                });
                device.destroy_bo(bo).unwrap();
                (key, bytes)
            })
            .collect();
        assert_eq!(kernel.counts(), (1, 0, 0), "only the event page stays");
        std::thread::sleep(Duration::from_millis(20));
        for (key, bytes) in contents {
            let bo = bos.get_mut(key).unwrap();
            if bo.kernel.is_some() {
                device.map_cpu(bo).unwrap();
                continue;
            }
            device.create_bo(bo).unwrap();
            if let Some(bytes) = bytes {
                context::memory::mapped::view(bo.state.va, bo.state.bytes).unwrap().write(0, &bytes);
            }
        }
        for key in registry.events_by_id() {
            let event = registry.events.get_mut(key).unwrap();
            let id = event.id;
            device.create_event(event, None).unwrap();
            assert_eq!(event.id, id);
        }
        for key in registry.queues_by_id() {
            let queue = registry.queues.get(key).unwrap();
            let (live, logical) = (queue.live.clone().unwrap(), queue.state.write_index);
            let doorbell = bring_up(&device, &mut registry, key, &live, logical).unwrap();
            live.attach(&mut closed, doorbell);
        }
    }
    put_device(context, &mut closed, std::sync::Arc::new(device)).unwrap();
    closed.open();
    assert_eq!(queue.write_index().unwrap(), index);
    assert!(!sleeper.is_finished());
    assert_eq!(queue.barrier(&[&hold], Some(&signal)).unwrap(), index);
    hold.store(0).unwrap();
    assert_eq!(sleeper.join().unwrap().unwrap(), 0);
    queue.barrier(&[], Some(&waiter)).unwrap();
    waiter.wait(Condition::Equal(0), SOON, WaitMode::Blocked).unwrap();
    // What was recorded before is submitted to the queue that is there now.
    assert_eq!(list.submit().unwrap(), index + 2..index + 3);
    listed.wait(Condition::Equal(0), SOON, WaitMode::Blocked).unwrap();
}
