// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an idle device costs, and how fast it wakes up.

use super::*;

/// CPU time of this process's threads with this name, from the scheduler's own count (ns resolution).
fn cpu_time(name: &str) -> Duration {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            total += read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Duration::from_nanos(total)
}

#[test]
fn idle_queue_uses_no_cpu() {
    let machine = Machine::new();
    let queue = machine.queue(771);
    let done = machine.signal(1);
    queue.barrier(&[], Some(&done));
    done.wait_zero();
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time("queue 771");
    assert!(before > Duration::ZERO, "no such thread");
    std::thread::sleep(Duration::from_millis(300));
    let used = cpu_time("queue 771") - before;
    assert!(used < Duration::from_micros(500), "{used:?} in 300 ms");
}

#[test]
fn waiting_barrier_uses_little_cpu() {
    let machine = Machine::new();
    let queue = machine.queue(772);
    let (dep, done) = (machine.signal(1), machine.signal(1));
    queue.barrier(&[&dep], Some(&done));
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time("queue 772");
    std::thread::sleep(Duration::from_millis(300));
    let used = cpu_time("queue 772") - before;
    println!("a waiting barrier uses {used:?} in 300 ms");
    assert!(used < Duration::from_millis(20), "{used:?} in 300 ms");
    dep.store(0);
    done.wait_zero();
}

#[test]
fn parked_queue_wakes_quickly() {
    let machine = Machine::new();
    let queue = machine.queue(1);
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let done = machine.signal(1);
            std::thread::sleep(Duration::from_millis(1));
            let since = Instant::now();
            queue.barrier(&[], Some(&done));
            while done.value() != 0 {
                assert!(since.elapsed() < Duration::from_secs(10));
                std::hint::spin_loop();
            }
            let time = since.elapsed();
            machine.gpus.unmap(0, done.buffer.va, 4096);
            time
        })
        .collect();
    times.sort();
    println!(
        "doorbell to completion from parked: median {:?}, 90 % {:?}, worst {:?}",
        times[100], times[180], times[199]
    );
    assert!(times[100] < Duration::from_millis(2), "median {:?}", times[100]);
}
