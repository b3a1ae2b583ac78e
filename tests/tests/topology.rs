// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines of several GPUs as the runtime sees them: from a topology file, through a real softgpud.
#![allow(clippy::unwrap_used)]

use stasis::{Arg, OpenError, Options, Runtime, Signal, WaitError};
use stasis_tests::gpu::{Gpu, SOON, isolate, machine_file, open_on, skip_on_kernel_driver, values};

const SOFT: &str = "it describes a software machine";

/// Two sockets. GPUs 0 and 1 are a hive on the first; 2 and 3 are on the second, 3 has a small BAR, and 2 has no path
/// to 0.
const FOUR: &str = r#"
    [[numa]]
    memory = "8GiB"
    cores = 4
    distance = [10, 32]

    [[numa]]
    memory = "8GiB"
    cores = 4
    distance = [32, 10]

    [[gpu]]
    chip = "gfx1100"
    hive = 7

    [[gpu]]
    chip = "gfx1100"
    hive = 7

    [[gpu]]
    chip = "gfx90a"
    numa_node = 1
    render_minor = 200
    vram_bytes = "4GiB"

    [[gpu]]
    chip = "gfx1201"
    numa_node = 1
    vram_bytes = "16GiB"
    bar = "small"

    [[link]]
    kind = "xgmi"
    gpus = [0, 1]
    bandwidth = [25000, 50000]

    [[unreachable]]
    from = 2
    to = 0
"#;

fn try_open(path: &std::path::Path) -> Result<Runtime, OpenError> {
    isolate();
    let device = Some(format!("soft:{}", path.display()).parse().unwrap());
    Runtime::open(Options { device, agents: None })
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn runtime_sees_the_machine_that_the_file_describes() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let (_directory, path) = machine_file(FOUR);
    let runtime = open_on(&format!("soft:{}", path.display()), None);
    let agents = runtime.agents();
    let seen: Vec<_> = agents.iter().map(|agent| (agent.target().name, agent.vram_bytes())).collect();
    assert_eq!(
        seen,
        [
            ("gfx1100", 25_753_026_560),
            ("gfx1100", 25_753_026_560),
            ("gfx90a", 4 << 30),
            ("gfx1201", 16 << 30)
        ]
    );
    // Nodes 0 and 1 are the sockets, 2 to 5 the GPUs. (kind, to, weight, most MB/s)
    let links: Vec<Vec<_>> = agents
        .iter()
        .map(|agent| {
            agent.links().map(|link| (link.kind, link.node_to, link.weight, link.max_bandwidth)).collect()
        })
        .collect();
    assert_eq!(
        links,
        [
            vec![(2, 0, 20, 32_000), (11, 3, 15, 50_000), (2, 1, 52, 0), (2, 4, 72, 0)],
            vec![(2, 0, 20, 32_000), (11, 2, 15, 50_000), (2, 1, 52, 0), (2, 4, 72, 0)],
            vec![(2, 1, 20, 32_000), (2, 0, 52, 0), (2, 3, 72, 0)],
            vec![(2, 1, 20, 32_000), (2, 0, 52, 0), (2, 2, 72, 0), (2, 3, 72, 0), (2, 4, 40, 32_000)],
        ]
    );
    // Every chip has memory; the CPU sees it where the BAR is large.
    for (agent, visible) in agents.iter().zip([true, true, true, false]) {
        assert_eq!(agent.vram().is_visible(), visible, "{}", agent.target().name);
        let before = agent.vram_available().unwrap();
        let buffer = agent.vram().alloc(8 << 20).unwrap();
        assert_eq!(before - agent.vram_available().unwrap(), 8 << 20);
        drop(buffer);
    }
    // Chips that the device executes run kernels.
    let buffer = agents[1].vram().alloc(4096).unwrap();
    runtime.fill(buffer.all(), &[0x5a], &[]).unwrap().wait(stasis_tests::gpu::SOON).unwrap();
    assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == 0x5a));
    // On gfx9 a queue processes all but kernels; on other chips it is refused by name.
    let queue = stasis::Queue::create(&agents[2], stasis::QueueOptions::default()).unwrap();
    let done = Signal::new(&runtime, 1).unwrap();
    queue.barrier(&[], Some(&done)).unwrap();
    done.wait_done(SOON).unwrap();
    let error = chain(&stasis::Queue::create(&agents[3], stasis::QueueOptions::default()).unwrap_err());
    assert!(error.contains("not supported"), "{error}");
    assert!(agents[0].vram_available().is_ok(), "the device is alive after that");
}

#[test]
fn list_with_a_count_names_as_many_agents() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let runtime = open_on("soft:gfx1100*2,gfx1201", None);
    let names: Vec<_> = runtime.agents().iter().map(|agent| agent.target().name).collect();
    assert_eq!(names, ["gfx1100", "gfx1100", "gfx1201"]);
}

#[test]
fn queues_have_the_save_area_that_the_kernel_demands() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    // The formula gives 46047232 and 40960. The kernel of the second GPU knows too few registers.
    let (_directory, path) = machine_file(
        r#"
        [[gpu]]
        chip = "gfx1100"
        ctl_stack_size = 45056
        cwsr_size = 46055424

        [[gpu]]
        chip = "gfx1100"
        cwsr_size = 33464320
    "#,
    );
    let runtime = open_on(&format!("soft:{}", path.display()), None);
    for index in 0..runtime.agents().len() {
        let gpu = Gpu::on(&runtime, index);
        let counter = gpu.buffer(&[0u32]);
        gpu.run(&gpu.kernel("increment"), [100, 1, 1], [32, 1, 1], &[Arg::Buffer(&counter)]);
        assert_eq!(values::<u32>(&counter), [100]);
        // The waves are looked for where the control stack of that size ends.
        let (read, done) = (gpu.kernel("read_at"), Signal::new(&runtime, 1).unwrap());
        let args = [Arg::Buffer(&counter), Arg::Address(0x1234_5678_9000)];
        let dispatch = gpu.queue.dispatch(&read).grid([1, 1, 1]).args(&args).completion(&done);
        dispatch.submit().unwrap();
        let fault = match done.wait_done(SOON) {
            Err(WaitError::Queue(fault)) => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault.wave.as_ref().unwrap().kernel.as_ref().unwrap().0, "read_at", "{fault}");
    }
}

#[test]
fn save_area_that_no_kernel_demands_leaves_the_gpu_out_with_the_reason() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let (_directory, path) = machine_file("[[gpu]]\nchip = \"gfx1100\"\nctl_stack_size = 0\n");
    let error = chain(&try_open(&path).unwrap_err());
    assert!(error.contains("ctl_stack_size 0 B") && error.contains("40960 B"), "{error}");
}

#[test]
fn file_that_describes_no_machine_is_refused_with_what_is_wrong_in_it() {
    if skip_on_kernel_driver(SOFT) {
        return;
    }
    let (_directory, path) = machine_file("[[gpu]]\nchip = \"gfx1100\"\nrender_minor = 5\n");
    let error = chain(&try_open(&path).unwrap_err());
    assert!(error.contains("[[gpu]] 0: render_minor is 5, expected 128 to 255"), "{error}");
    // The corrected file is another machine, on the same instance.
    std::fs::write(&path, "[[gpu]]\nchip = \"gfx1100\"\nbars = 5\n").unwrap();
    let error = chain(&try_open(&path).unwrap_err());
    assert!(error.contains("unknown field `bars`"), "{error}");
    std::fs::write(&path, "[[gpu]]\nchip = \"gfx1100\"\nvram_bytes = \"1GiB\"\n").unwrap();
    assert_eq!(try_open(&path).unwrap().agents()[0].vram_bytes(), 1 << 30);
}
