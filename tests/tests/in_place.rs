// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lock`, `checkpoint`, `restore`, `unlock` within one process, without CRIU.
#![allow(clippy::unwrap_used)]

use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use stasis::checkpoint::{CheckpointError, IMAGE_FILE, Metadata, Mode, State};
use stasis::image::{Image, ImageError};
use stasis::{Arg, Condition, FreeError, Queue, QueueOptions, Runtime, Signal, WaitMode, WindowError};
use stasis_tests::gpu::{Gpu, Numbers, SOON, Spinning, on_a_future_kernel, values};

const DEADLINE: Duration = Duration::from_secs(20);

fn freeze(runtime: &Runtime, directory: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A failed assertion drops handles, which waits at the closed gate for ever.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::exit(101);
        }));
    });
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    runtime.checkpoint(directory).unwrap();
}

fn thaw(runtime: &Runtime) {
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
}

fn metadata(directory: &Path) -> Metadata {
    Image::open(&directory.join(IMAGE_FILE)).unwrap().metadata().unwrap()
}

#[test]
fn contents_addresses_and_handles_are_the_same_afterwards() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let numbers: Vec<u32> = Numbers(1).take(1 << 20).collect();
    let (vram, gtt) = (gpu.buffer(&numbers), gpu.runtime.gtt().alloc(3).unwrap());
    gtt.write(0, b"gtt").unwrap();
    let (signal, counter) = (Signal::new(&gpu.runtime, 42).unwrap(), gpu.buffer(&[0u32]));
    let kernel = gpu.kernel("increment");
    gpu.run(&kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    let index = gpu.queue.write_index().unwrap();
    freeze(&gpu.runtime, directory.path());
    thaw(&gpu.runtime);
    assert_eq!(values::<u32>(&vram), numbers);
    assert_eq!((gtt.to_vec().unwrap().as_slice(), signal.load().unwrap()), (&b"gtt"[..], 42));
    assert!(gpu.queue.write_index().unwrap() >= index, "the index went back");
    gpu.run(&kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [20]);
}

#[test]
fn verbs_out_of_order_are_refused_and_change_nothing() {
    let gpu = Gpu::new();
    let (runtime, directory) = (&gpu.runtime, tempfile::tempdir().unwrap());
    let state = |error: CheckpointError| match error {
        CheckpointError::State { state, wanted, .. } => (state, wanted),
        other => panic!("{other}"),
    };
    assert_eq!(runtime.state(), State::Running);
    let refused = runtime.checkpoint(directory.path()).unwrap_err();
    assert_eq!(state(refused), (State::Running, State::Locked));
    assert_eq!(state(runtime.unlock().unwrap_err()), (State::Running, State::Locked));
    assert_eq!(state(runtime.restore(None).unwrap_err()), (State::Running, State::Checkpointed));
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    assert_eq!(state(runtime.lock(Mode::Drain, DEADLINE).unwrap_err()), (State::Locked, State::Running));
    runtime.checkpoint(directory.path()).unwrap();
    assert_eq!(runtime.state(), State::Checkpointed);
    assert_eq!(state(runtime.unlock().unwrap_err()), (State::Checkpointed, State::Locked));
    thaw(runtime);
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&gpu.buffer(&[0u32]))]);
}

#[test]
fn nothing_of_the_device_is_left_in_the_process_while_it_is_checkpointed() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let traces = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let fds = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let fds = fds.map(|name| name.to_string_lossy().into_owned());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps: Vec<String> = maps.lines().map(str::to_owned).collect();
        fds.chain(maps).filter(|name| name.contains("softgpu") || name.contains("/dev/")).count()
    };
    let null = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let null = null.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let null = null.filter(|name| name.starts_with("/dev/null") || name.starts_with("/dev/pts")).count();
    assert!(traces() > null);
    freeze(&gpu.runtime, directory.path());
    assert_eq!(traces(), null);
    thaw(&gpu.runtime);
}

#[test]
fn images_are_for_the_owner_only() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    freeze(&gpu.runtime, directory.path());
    let mode = std::fs::metadata(directory.path().join(IMAGE_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    thaw(&gpu.runtime);
}

#[test]
fn save_change_restore_save_gives_the_same_registry() {
    let gpu = Gpu::new();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut buffers: Vec<_> = (1..40u64).map(|n| gpu.agent.vram().alloc(n * 5000).unwrap()).collect();
    let mut signals: Vec<_> = (0..300).map(|n| Signal::new(&gpu.runtime, n).unwrap()).collect();
    // Holes in every table: keys must not move.
    drop((buffers.drain(5..9), signals.drain(100..200)));
    let small = QueueOptions { packets: 64, ..QueueOptions::default() };
    let queues = [gpu.queue.clone(), Queue::create(&gpu.agent, small).unwrap()];
    let (kernel, done) = (gpu.kernel("increment"), Signal::new(&gpu.runtime, 0).unwrap());
    let work = || {
        for queue in &queues {
            let args = [Arg::Buffer(&buffers[0])];
            done.store(1).unwrap();
            queue.dispatch(&kernel).grid([4, 1, 1]).args(&args).completion(&done).submit().unwrap();
            done.wait_done(SOON).unwrap();
        }
    };
    work();
    freeze(&gpu.runtime, first.path());
    thaw(&gpu.runtime);
    // Memory changes, the registry does not.
    work();
    freeze(&gpu.runtime, second.path());
    thaw(&gpu.runtime);
    let (a, mut b) = (metadata(first.path()), metadata(second.path()));
    assert_ne!(a.image_id, b.image_id);
    // The packet counters go on.
    for ((_, queue), (_, before)) in b.registry.queues.entries.iter_mut().zip(&a.registry.queues.entries) {
        assert!(queue.write_index > before.write_index && queue.bias >= before.bias);
        (queue.write_index, queue.bias) = (before.write_index, before.bias);
    }
    let tables = |metadata: &Metadata| {
        let json = serde_json::to_value(&metadata.registry).unwrap();
        let mut tables = json.as_object().unwrap().clone();
        // The waits of the second round used a temporary signal, and the restore a queue of its own, whose places count their
        // uses. Those of what is there are part of its keys.
        for table in tables.values_mut().filter_map(|table| table.as_object_mut()) {
            let Some(entries) = table.get("entries").and_then(|entries| entries.as_array()) else { continue };
            let places = entries.iter().filter_map(|entry| entry.get(0)?.as_u64()).collect::<Vec<_>>();
            let generations = table.get("generations").cloned().unwrap_or_default();
            let kept = places.iter().map(|&place| generations[usize::try_from(place).unwrap()].clone());
            let kept = kept.collect::<Vec<_>>();
            table.insert("generations".to_owned(), kept.into());
        }
        tables.into_iter().collect::<Vec<_>>()
    };
    for (a, b) in tables(&a).into_iter().zip(tables(&b)) {
        assert!(a == b, "{} before {}\nafter {}", a.0, a.1, b.1);
    }
    assert_eq!((a.agents, a.extents, a.transport, a.pid), (b.agents, b.extents, b.transport, b.pid));
}

#[test]
fn five_generations_keep_every_byte() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let mut expected: Vec<u32> = Numbers(5).take(100_000).collect();
    let (cells, address, kernel) = (gpu.buffer(&expected), gpu.buffer(&[0u64]), gpu.kernel("step"));
    for salt in 0..5 {
        let args = [Arg::Buffer(&cells), Arg::Buffer(&address), Arg::U32(100_000), Arg::U32(salt)];
        gpu.run(&kernel, [100_096, 1, 1], [256, 1, 1], &args);
        for (cell, i) in expected.iter_mut().zip(0u32..) {
            *cell = cell.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).wrapping_add(i ^ salt);
        }
        freeze(&gpu.runtime, directory.path());
        thaw(&gpu.runtime);
        assert!(values::<u32>(&cells) == expected, "generation {salt}");
        assert_eq!(values::<u64>(&address), [cells.va()]);
    }
}

#[test]
fn queue_has_all_its_room_again_right_after_a_restore() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let small = QueueOptions { packets: 64, ..QueueOptions::default() };
    let queue = Queue::create(&gpu.agent, small).unwrap();
    // A new hardware queue starts at packet 0: a restore fills the ring up to the queue's index, anywhere in the ring.
    for round in 0..20 {
        freeze(&gpu.runtime, directory.path());
        thaw(&gpu.runtime);
        for packet in 0..60 {
            queue
                .barrier(&[], None)
                .unwrap_or_else(|error| panic!("round {round}, packet {packet}: {error}"));
        }
        queue.wait_idle(SOON).unwrap();
    }
}

#[test]
fn calls_of_many_threads_wait_at_the_gate_and_then_go_on() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let (kernel, counter) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let submitted: u32 = std::thread::scope(|scope| {
        let submitters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let queue = Queue::create(&gpu.agent, QueueOptions::default()).unwrap();
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let done = Signal::new(&gpu.runtime, 1).unwrap();
                        let args = [Arg::Buffer(&counter)];
                        let dispatch = queue.dispatch(&kernel).grid([1, 1, 1]).args(&args);
                        dispatch.completion(&done).submit().unwrap();
                        done.wait(Condition::Equal(0), SOON, WaitMode::Blocked).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let allocator = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let buffer = gpu.agent.vram().alloc(100_000).unwrap();
                gpu.runtime.fill(buffer.all(), &[7], &[]).unwrap().wait(SOON).unwrap();
                assert!(values::<u8>(&buffer).iter().all(|&byte| byte == 7));
                // On a busy machine its last packet may not run within the grace of one call.
                while let Err(error) = buffer.free() {
                    assert!(matches!(error, FreeError::Pending { .. }), "{error}");
                }
            }
        });
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(20));
            freeze(&gpu.runtime, directory.path());
            std::thread::sleep(Duration::from_millis(20));
            thaw(&gpu.runtime);
        }
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
        allocator.join().unwrap();
        submitters.into_iter().map(|submitter| submitter.join().unwrap()).sum()
    });
    assert!(submitted > 0);
    assert_eq!(values::<u32>(&counter), [submitted]);
}

#[test]
fn kernel_that_does_not_end_is_refused_at_the_deadline_and_runs_on() {
    let gpu = Gpu::new();
    let spinning = Spinning::start(&gpu);
    let started = Instant::now();
    let error = gpu.runtime.lock(Mode::Drain, Duration::from_millis(200)).unwrap_err();
    let CheckpointError::LockTimeout { running, queue, elapsed } = &error else { panic!("{error}") };
    assert_eq!((running.as_deref(), *queue), (Some("spin"), gpu.queue.key()));
    assert!(*elapsed >= Duration::from_millis(200), "{elapsed:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(gpu.runtime.state(), State::Running);
    spinning.end();
    gpu.queue.wait_idle(SOON).unwrap();
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
}

#[test]
fn host_access_holds_the_lock_off_until_it_ends() {
    let gpu = Gpu::new();
    let buffer = gpu.runtime.gtt().alloc(4096).unwrap();
    let guard = buffer.host().unwrap();
    let own = gpu.runtime.lock(Mode::Drain, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(own, CheckpointError::Gate(_)), "{own}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| gpu.runtime.lock(Mode::Drain, Duration::from_millis(100)));
        let error = other.join().unwrap().unwrap_err();
        assert!(matches!(error, CheckpointError::Gate(stasis::CloseError::Timeout { passes: 1 })), "{error}");
    });
    drop(guard);
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    gpu.runtime.unlock().unwrap();
}

#[test]
fn checkpoint_into_nowhere_fails_and_the_process_is_as_before() {
    let gpu = Gpu::new();
    let counter = gpu.buffer(&[1u32]);
    gpu.runtime.lock(Mode::Drain, DEADLINE).unwrap();
    let error = gpu.runtime.checkpoint(Path::new("/nowhere/at/all")).unwrap_err();
    assert!(matches!(&error, CheckpointError::Image(ImageError::Io { .. })), "{error}");
    assert_eq!(gpu.runtime.state(), State::Locked);
    gpu.runtime.unlock().unwrap();
    gpu.run(&gpu.kernel("increment"), [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [2]);
}

#[test]
fn damaged_or_foreign_image_is_refused_and_the_whole_one_is_taken_then() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let numbers: Vec<u32> = Numbers(9).take(300_000).collect();
    let buffer = gpu.buffer(&numbers);
    freeze(&gpu.runtime, directory.path());
    let earlier = std::fs::read(directory.path().join(IMAGE_FILE)).unwrap();
    thaw(&gpu.runtime);
    freeze(&gpu.runtime, directory.path());
    let path = directory.path().join(IMAGE_FILE);
    let whole = std::fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let longer = [&whole[..], &[0]].concat();
    let cases = [
        (whole[..whole.len() - 1].to_vec(), "truncated"),
        (whole[..10].to_vec(), "truncated"),
        (longer, "appended"),
        (flipped(0), "not a Stasis image"),
        (flipped(8), "image format"),
        (flipped(40), "section header at offset"),
        (flipped(70), "corrupt in section"),
        (flipped(4096 + 100), "section contents at offset"),
        (flipped(whole.len() - 3), "section metadata at offset"),
        (earlier, "another time's image"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = format!("{:#}", anyhow::Error::from(gpu.runtime.restore(None).unwrap_err()));
        assert!(error.contains(expected), "wanted {expected:?}: {error}");
        assert_eq!(gpu.runtime.state(), State::Checkpointed);
    }
    std::fs::write(&path, whole).unwrap();
    thaw(&gpu.runtime);
    assert!(values::<u32>(&buffer) == numbers);
}

#[test]
fn image_that_was_moved_is_taken_from_where_it_is() {
    let gpu = Gpu::new();
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let buffer = gpu.buffer(&[77u32; 1000]);
    freeze(&gpu.runtime, from.path());
    std::fs::rename(from.path().join(IMAGE_FILE), to.path().join(IMAGE_FILE)).unwrap();
    let error = gpu.runtime.restore(Some(from.path())).unwrap_err();
    assert!(matches!(error, CheckpointError::Image(ImageError::Io { .. })), "{error}");
    gpu.runtime.restore(Some(to.path())).unwrap();
    gpu.runtime.unlock().unwrap();
    assert_eq!(values::<u32>(&buffer), [77; 1000]);
}

#[test]
fn taken_address_window_is_refused_by_address_and_free_again_restores() {
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let buffer = gpu.buffer(&[5u32; 4096]);
    freeze(&gpu.runtime, directory.path());
    const PAGE: NonZero<usize> = NonZero::new(4096).unwrap();
    let at = NonZero::new(buffer.va() as usize + 4096).unwrap();
    let map = |access| {
        // SAFETY: the page is in the window, where nothing is mapped while the process is checkpointed.
        unsafe { mmap_anonymous(Some(at), PAGE, access, MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED) }
            .unwrap();
    };
    map(ProtFlags::PROT_READ);
    let error = gpu.runtime.restore(None).unwrap_err();
    let CheckpointError::Window(WindowError::Occupied { from, .. }) = error else { panic!("{error}") };
    assert_eq!(from, buffer.va() + 4096);
    assert_eq!(gpu.runtime.state(), State::Checkpointed);
    map(ProtFlags::PROT_NONE);
    thaw(&gpu.runtime);
    assert_eq!(values::<u32>(&buffer), [5; 4096]);
}

#[test]
fn failed_queue_stays_failed_and_the_rest_survives() {
    // Released kernels stop all queues of the process at a memory fault.
    on_a_future_kernel();
    let gpu = Gpu::new();
    let directory = tempfile::tempdir().unwrap();
    let (kernel, bad) = (gpu.kernel("write_at"), Queue::create(&gpu.agent, QueueOptions::default()).unwrap());
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let args = [Arg::Address(0x3000), Arg::U32(0)];
    bad.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(&done).submit().unwrap();
    assert!(done.wait_done(SOON).is_err());
    freeze(&gpu.runtime, directory.path());
    thaw(&gpu.runtime);
    assert!(bad.fault().is_some() && bad.barrier(&[], None).is_err());
    let counter = gpu.buffer(&[0u32]);
    gpu.run(&gpu.kernel("increment"), [3, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [3]);
    bad.destroy().unwrap();
}
