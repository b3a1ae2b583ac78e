// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several agents in one process: reachability, grants, copies on every path, logical devices.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stasis::checkpoint::{Activity, Mode};
use stasis::{
    AllocError, Arg, Buffer, CopyEngine, CopyError, CopyPath, Direction, LogicalError, PathKind, Place,
    Runtime, SDMA_LINK_BYTES, Signal, Unreachable,
};
use stasis_tests::gpu::{Gpu, Numbers, SOON, on_a_future_kernel, open_on, skip_on_kernel_driver, values};
use stasis_tests::program;

const DEADLINE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const PEER: [CopyPath; 5] = [
    CopyPath::PeerSdma(Direction::Pull),
    CopyPath::PeerSdma(Direction::Push),
    CopyPath::PeerShader(Direction::Pull),
    CopyPath::PeerShader(Direction::Push),
    CopyPath::Staged,
];

/// The runtime on this software device; none over the kernel's driver, which has the GPUs it has.
fn soft(device: &str) -> Option<Runtime> {
    (!skip_on_kernel_driver("only the software device has the agents wanted")).then(|| open_on(device, None))
}

/// Two PCIe peers that reach each other.
fn pair() -> Option<Runtime> {
    soft("soft:gfx1100,gfx1100")
}

/// Pseudo-random bytes that do not repeat within a chunk of a staged copy.
fn bytes(seed: u64, n: u64) -> Vec<u8> {
    Numbers(seed).take((n as usize).div_ceil(4)).flat_map(u32::to_le_bytes).take(n as usize).collect()
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.download(0, &mut bytes).unwrap();
    bytes
}

fn vram(runtime: &Runtime, agent: usize, n: u64) -> Buffer {
    runtime.agent(agent).unwrap().vram().alloc(n).unwrap()
}

#[test]
fn agents_of_one_machine_reach_each_other_and_the_host() {
    let Some(runtime) = pair() else { return };
    let (first, second) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    assert_eq!(first.path_to(&first).kind, PathKind::Same);
    for (from, to) in [(&first, &second), (&second, &first)] {
        let path = from.path_to(to);
        assert_eq!((path.kind, path.weight), (PathKind::Pcie, 40));
        assert!(path.max_bandwidth >= path.min_bandwidth && path.max_bandwidth > 0, "{path:?}");
    }
    let matrix = runtime.links();
    assert!(matches!(
        matrix.places(),
        [Place::Agent { .. }, Place::Agent { index: 1, .. }, Place::Host { node: 0 }]
    ));
    assert!(matrix.pairs().all(|(_, _, path)| path.exists()));
    assert!(runtime.left_out().is_empty());
}

#[test]
fn granted_peer_memory_is_read_by_kernels() {
    let Some(runtime) = pair() else { return };
    let [first, second] = [0, 1].map(|agent| Gpu::on(&runtime, agent));
    let (from, to) = (first.buffer(&[1.5f32; 256]), second.buffer(&[1f32; 256]));
    from.allow(&second.agent).unwrap();
    let args = [Arg::Buffer(&from), Arg::Buffer(&to), Arg::F32(2.0), Arg::U32(256)];
    second.run(&second.kernel("axpy"), [256, 1, 1], [256, 1, 1], &args);
    assert_eq!(values::<f32>(&to), [4.0; 256]);
}

#[test]
fn every_path_copies_every_size_at_every_offset() {
    let Some(runtime) = pair() else { return };
    let n = 2 * MIB;
    let source = bytes(1, n);
    let (from, to) = (vram(&runtime, 1, n), vram(&runtime, 0, n));
    from.upload(0, &source).unwrap();
    for path in PEER {
        // Kernels are interpreted: large copies use a copy engine.
        let large = if matches!(path, CopyPath::PeerShader(_)) { 20_001 } else { n - 777 };
        for (case, size) in [0, 1, 3, 255, 4099, large].into_iter().enumerate() {
            let (at, onto) = (case as u64 * 3 + 1, 5 * case as u64 + 2);
            to.write(0, &vec![0x11; n as usize]).unwrap();
            let copy = runtime.copy_via(path, to.span(onto, size), from.span(at, size), &[]).unwrap();
            assert_eq!(copy.path(), path);
            copy.wait(SOON).unwrap();
            let mut expected = vec![0x11; n as usize];
            expected[onto as usize..][..size as usize]
                .copy_from_slice(&source[at as usize..][..size as usize]);
            assert!(contents(&to) == expected, "{path}: {size} bytes from {at} to {onto}");
        }
    }
}

#[test]
fn path_is_chosen_by_ends_and_size_and_told() {
    let Some(runtime) = pair() else { return };
    let n = SDMA_LINK_BYTES;
    let (a, b, host) =
        (vram(&runtime, 0, 2 * n), vram(&runtime, 1, 2 * n), runtime.gtt().alloc(2 * n).unwrap());
    let path = |to: &Buffer, from: &Buffer, size| {
        let copy = runtime.copy(to.span(n, size), from.span(0, size), &[]).unwrap();
        copy.wait(SOON).unwrap();
        copy.path()
    };
    assert_eq!(path(&a, &b, n), CopyPath::PeerSdma(Direction::Pull));
    assert_eq!(path(&b, &a, 64), CopyPath::PeerShader(Direction::Pull));
    assert_eq!(path(&a, &a, 64), CopyPath::Local);
    assert_eq!(
        (path(&a, &host, 64), path(&host, &b, n), path(&host, &host, 64)),
        (CopyPath::Host, CopyPath::Host, CopyPath::Host)
    );
    let fill = runtime.fill(b.all(), &[7], &[]).unwrap();
    fill.wait(SOON).unwrap();
    assert_eq!(fill.path(), CopyPath::Local);
}

#[test]
fn staged_copies_of_many_chunks_are_in_order_with_what_waits_for_them() {
    let Some(runtime) = pair() else { return };
    let (n, odd) = (6 * MIB, 12_345);
    let source = bytes(2, n);
    let [first, second] = [0, 1].map(|agent| Gpu::on(&runtime, agent));
    let (from, to, back) = (vram(&runtime, 0, n), vram(&runtime, 1, n), vram(&runtime, 0, n));
    from.upload(0, &source).unwrap();
    let hold = Signal::new(&runtime, 1).unwrap();
    let size = n - 2 * odd;
    let there =
        runtime.copy_via(CopyPath::Staged, to.span(odd, size), from.span(odd, size), &[&hold]).unwrap();
    // A copy in the other direction follows on the same queues, and then a packet of the caller.
    let again = runtime
        .copy_via(CopyPath::Staged, back.span(7, size), to.span(odd, size), &[there.signal()])
        .unwrap();
    let seen = Signal::new(&runtime, 1).unwrap();
    first.queue.barrier(&[again.signal()], Some(&seen)).unwrap();
    second.queue.barrier(&[there.signal()], None).unwrap();
    assert_eq!(again.signal().load().unwrap(), 1, "nothing may begin before what it waits for");
    hold.store(0).unwrap();
    seen.wait_done(SOON).unwrap();
    second.queue.wait_idle(SOON).unwrap();
    let part = &source[odd as usize..][..size as usize];
    assert!(contents(&back)[7..][..size as usize] == *part);
    assert!(contents(&to)[odd as usize..][..size as usize] == *part);
    // No handle keeps the buffers.
    drop((there, again));
    [from, to, back].iter().for_each(|buffer| buffer.free().unwrap());
}

/// A kernel that runs until its flag is set, and staged copies there and back that wait for it.
struct Caught {
    gpu: Gpu,
    flag: Buffer,
    from: Buffer,
    to: Buffer,
    back: Buffer,
    source: Vec<u8>,
    copies: [stasis::Transfer; 2],
}

impl Caught {
    fn new(runtime: &Runtime) -> Self {
        let n = 4 * MIB + 321;
        let source = bytes(3, n);
        let gpu = Gpu::on(runtime, 0);
        let (from, to, back) = (vram(runtime, 0, n), vram(runtime, 1, n), vram(runtime, 0, n));
        from.upload(0, &source).unwrap();
        let (flag, ended) = (gpu.buffer(&[0u32]), Signal::new(runtime, 1).unwrap());
        let kernel = gpu.kernel("spin");
        let args = [Arg::Buffer(&flag)];
        let spin = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args);
        spin.completion(&ended).submit().unwrap();
        let there = runtime.copy_via(CopyPath::Staged, to.all(), from.all(), &[&ended]).unwrap();
        let again = runtime.copy_via(CopyPath::Staged, back.all(), to.all(), &[there.signal()]).unwrap();
        // A queue of the caller's that waits for the copy must not keep a lock from draining it.
        gpu.queue.barrier(&[again.signal()], None).unwrap();
        Self { gpu, flag, from, to, back, source, copies: [there, again] }
    }

    /// Sets the flag as an agent would, whether the gate is open or not.
    #[allow(unsafe_code)]
    fn release(&self) {
        let flag: *mut u32 = std::ptr::with_exposed_provenance_mut(self.flag.va() as usize);
        // SAFETY: the buffer is alive, and mapped for the CPU while the process is not checkpointed.
        unsafe { flag.write_volatile(1) };
    }

    fn arrives(&self) {
        self.copies.iter().for_each(|copy| copy.wait(SOON).unwrap());
        for buffer in [&self.from, &self.to, &self.back] {
            assert!(contents(buffer) == self.source);
        }
        self.gpu.queue.wait_idle(SOON).unwrap();
        let copy =
            self.gpu.runtime.copy_via(CopyPath::Staged, self.to.span(9, MIB), self.from.span(0, MIB), &[]);
        copy.unwrap().wait(SOON).unwrap();
    }

    fn through_a_checkpoint(&self, directory: &Path) {
        let runtime = &self.gpu.runtime;
        runtime.checkpoint(directory).unwrap();
        runtime.restore(None).unwrap();
        runtime.unlock().unwrap();
    }
}

/// A failed assertion drops handles, which waits at a closed gate for ever.
fn fail_at_once() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
}

#[test]
fn staged_copy_ends_while_a_lock_drains_it() {
    let Some(runtime) = pair() else { return };
    fail_at_once();
    let caught = Caught::new(&runtime);
    std::thread::scope(|scope| {
        let lock = scope.spawn(|| runtime.lock(Mode::Drain, DEADLINE).unwrap());
        while runtime.activity() == Activity::Idle && !lock.is_finished() {
            std::thread::yield_now();
        }
        caught.release();
        lock.join().unwrap();
    });
    assert!(caught.copies.iter().all(|copy| copy.path() == CopyPath::Staged));
    caught.through_a_checkpoint(tempfile::tempdir().unwrap().path());
    caught.arrives();
}

#[test]
fn staged_copy_that_was_preempted_goes_on_after_the_restore() {
    on_a_future_kernel();
    let Some(runtime) = pair() else { return };
    fail_at_once();
    let caught = Caught::new(&runtime);
    runtime.lock(Mode::Preempt, DEADLINE).unwrap();
    caught.through_a_checkpoint(tempfile::tempdir().unwrap().path());
    assert_eq!(caught.copies[0].signal().load().unwrap(), 1, "nothing has released it");
    caught.release();
    caught.arrives();
}

#[test]
fn staged_copies_survive_checkpoints_whenever_they_come() {
    on_a_future_kernel();
    let Some(runtime) = pair() else { return };
    fail_at_once();
    let n = 8 * MIB;
    let source = bytes(5, n);
    let (from, to) = (vram(&runtime, 0, n), vram(&runtime, 1, n));
    from.upload(0, &source).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (round, mode) in [Mode::Drain, Mode::Preempt, Mode::Drain, Mode::Preempt].into_iter().enumerate() {
        runtime.fill(to.all(), &[0xee], &[]).unwrap().wait(SOON).unwrap();
        let copy = runtime.copy_via(CopyPath::Staged, to.all(), from.all(), &[]).unwrap();
        // At whatever address the flag is by then.
        std::thread::sleep(Duration::from_millis(round as u64));
        runtime.lock(mode, DEADLINE).unwrap();
        runtime.checkpoint(directory.path()).unwrap();
        runtime.restore(None).unwrap();
        runtime.unlock().unwrap();
        copy.wait(SOON).unwrap();
        assert!(contents(&to) == source, "round {round}");
    }
}

#[test]
fn logical_devices_share_work_out_and_do_not_share_agents() {
    let Some(runtime) = soft("soft:gfx1100,gfx1100,gfx1100") else { return };
    let both = runtime.logical("stasis://0,2").unwrap();
    let refused = runtime.logical(&format!("stasis://1,{}", both.agents()[1].uuid())).unwrap_err();
    assert!(
        matches!(&refused, LogicalError::Held { agent, holder, .. } if agent.starts_with("2 (") && holder == "stasis://0,2"),
        "{refused}"
    );
    let other = runtime.logical("stasis://1").unwrap();
    assert_eq!(other.agents().len(), 1);
    let x: Vec<f32> = (0..1000).map(|n| n as f32).collect();
    let (xs, ys) = (
        both.scatter(bytemuck::cast_slice(&x), 256).unwrap(),
        both.scatter(bytemuck::cast_slice(&vec![1f32; 1000]), 256).unwrap(),
    );
    for (x, y) in xs.shares().iter().zip(ys.shares()) {
        let gpu = Gpu::on(&runtime, x.agent.index());
        let count = (x.bytes / 4) as u32;
        let args = [Arg::Buffer(&x.buffer), Arg::Buffer(&y.buffer), Arg::F32(3.0), Arg::U32(count)];
        gpu.run(&gpu.kernel("axpy"), [count.next_multiple_of(256), 1, 1], [256, 1, 1], &args);
    }
    let whole = runtime.gtt().alloc(4000).unwrap();
    ys.gather_into(&runtime, &whole, SOON).unwrap();
    let expected: Vec<f32> = x.iter().map(|x| 1.0 + 3.0 * x).collect();
    assert!(values::<f32>(&whole) == expected);
    assert_eq!(ys.gather().unwrap(), whole.to_vec().unwrap());
}

#[test]
fn what_a_list_leaves_out_is_reported() {
    if skip_on_kernel_driver("only the software device has the agents wanted") {
        return;
    }
    let runtime = open_on("soft:gfx1100,gfx1100,gfx1100", Some("stasis://2,0"));
    assert_eq!(runtime.agents().len(), 2);
    let [left] = runtime.left_out() else { panic!("one is left out") };
    assert_eq!(left.ordinal, 1);
    assert!(left.to_string().contains("stasis://2,0"), "{left}");
}

/// The runtime on a machine that a topology file describes.
fn machine(directory: &tempfile::TempDir, text: &str) -> Option<Runtime> {
    let file = directory.path().join("machine.toml");
    std::fs::write(&file, text).unwrap();
    soft(&format!("soft:{}", file.display()))
}

const THREE: &str = "[[gpu]]\nchip = \"gfx1100\"\n[[gpu]]\nchip = \"gfx1100\"\n[[gpu]]\nchip = \"gfx1100\"\n";

/// Copies all of one buffer to another one and back to the process; the path it took.
fn arrives(runtime: &Runtime, to: &Buffer, from: &Buffer, seed: u64) -> CopyPath {
    let source = bytes(seed, from.len());
    from.upload(0, &source).unwrap();
    let copy = runtime.copy(to.all(), from.all(), &[]).unwrap();
    copy.wait(SOON).unwrap();
    assert!(contents(to) == source, "{}", copy.path());
    copy.path()
}

#[test]
fn one_directional_peers_push_where_they_cannot_pull_and_stage_where_neither_can() {
    let directory = tempfile::tempdir().unwrap();
    // There is no path from 1 to 0, from 2 to 1, or from 1 to 2.
    let blocked = "[[unreachable]]\nfrom = 1\nto = 0\n[[unreachable]]\nfrom = 2\nto = 1\n[[unreachable]]\nfrom = 1\nto = 2\n";
    let Some(runtime) = machine(&directory, &format!("{THREE}{blocked}")) else { return };
    let agents = runtime.agents();
    assert!(agents[0].path_to(&agents[1]).exists() && !agents[1].path_to(&agents[0]).exists());
    let n = 3 * MIB + 5;
    let buffers: Vec<Buffer> = (0..3).map(|agent| vram(&runtime, agent, n)).collect();
    for (to, from, path) in [
        (0, 1, CopyPath::PeerSdma(Direction::Pull)),
        (1, 0, CopyPath::PeerSdma(Direction::Push)),
        (2, 1, CopyPath::Staged),
        (1, 2, CopyPath::Staged),
        (0, 2, CopyPath::PeerSdma(Direction::Pull)),
    ] {
        let seed = 10 * to as u64 + from as u64;
        assert_eq!(arrives(&runtime, &buffers[to], &buffers[from], seed), path, "{from} to {to}");
    }
    let why = |error: AllocError| match error {
        AllocError::NoPath(error) => error,
        other => panic!("{other}"),
    };
    let refused = why(buffers[0].allow(&agents[1]).unwrap_err());
    assert_eq!(refused.why, Unreachable::OneWay);
    assert!(
        refused.accessor.contains(agents[1].uuid()) && refused.owner.contains(agents[0].uuid()),
        "{refused}"
    );
    assert_eq!(why(buffers[1].allow(&agents[2]).unwrap_err()).why, Unreachable::Unlinked);
    buffers[1].allow(&agents[0]).unwrap();
    let pull = runtime.copy_via(CopyPath::PeerSdma(Direction::Pull), buffers[1].all(), buffers[0].all(), &[]);
    assert!(matches!(&pull, Err(CopyError::NoPath(error)) if error.why == Unreachable::OneWay), "{pull:?}");
}

#[test]
fn memory_behind_a_small_bar_is_staged_to_and_reaches_others() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n[[gpu]]\nchip = \"gfx1100\"\n[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n";
    let Some(runtime) = machine(&directory, text) else { return };
    let agents = runtime.agents();
    let n = 2 * MIB + 11;
    let buffers: Vec<Buffer> = (0..3).map(|agent| vram(&runtime, agent, n)).collect();
    let refused = buffers[0].allow(&agents[1]).unwrap_err();
    assert!(matches!(&refused, AllocError::NoPath(error) if error.why == Unreachable::SmallBar), "{refused}");
    // Only the agent with the small BAR reaches the other: it reads and writes the other's memory.
    assert_eq!(arrives(&runtime, &buffers[0], &buffers[1], 1), CopyPath::PeerSdma(Direction::Pull));
    assert_eq!(arrives(&runtime, &buffers[1], &buffers[0], 2), CopyPath::PeerSdma(Direction::Push));
    assert_eq!(arrives(&runtime, &buffers[2], &buffers[0], 3), CopyPath::Staged);
}

#[test]
fn hives_are_reached_over_xgmi_and_machines_without_p2p_stage() {
    let directory = tempfile::tempdir().unwrap();
    let hive = "[[gpu]]\nchip = \"gfx1100\"\nhive = 7\n";
    let text = format!("pcie_p2p = false\n{hive}{hive}[[gpu]]\nchip = \"gfx1100\"\n");
    let Some(runtime) = machine(&directory, &text) else { return };
    let agents = runtime.agents();
    assert_eq!(agents[1].path_to(&agents[0]).kind, PathKind::Xgmi { hops: 1 });
    let buffers: Vec<Buffer> = (0..3).map(|agent| vram(&runtime, agent, MIB)).collect();
    assert_eq!(arrives(&runtime, &buffers[1], &buffers[0], 1), CopyPath::PeerSdma(Direction::Pull));
    assert_eq!(arrives(&runtime, &buffers[2], &buffers[0], 2), CopyPath::Staged);
}

fn stasis(line: &str, listed: Option<&str>) -> String {
    let mut command = Command::new(program("stasis"));
    command.args(line.split_whitespace()).env("STASIS_DEVICE", "soft:gfx1100,gfx1100");
    command.env("STASIS_SOFTGPU_INSTANCE", format!("tests-p2p-{}", std::process::id()));
    if let Some(list) = listed {
        command.env("ROCR_VISIBLE_DEVICES", list);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn stasis_agents_prints_links_and_what_is_left_out() {
    let text = stasis("agents --links", None);
    assert!(text.contains("0 gfx1100") && text.contains("PCIe 40") && text.contains("host 0"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&stasis("agents --links --json", Some("1"))).unwrap();
    let links = json["links"].as_array().unwrap();
    assert!(
        links
            .iter()
            .any(|link| link["from"] == "agent 0" && link["to"] == "host 0" && link["kind"] == "PCIe")
    );
    assert_eq!(json["left_out"][0]["ordinal"], 0);
    let plain: serde_json::Value = serde_json::from_str(&stasis("agents --json", None)).unwrap();
    assert!(plain.get("links").is_none() && plain["left_out"].as_array().unwrap().is_empty());
    assert!(stasis("agents", Some("1")).contains("left out: 0 GPU-"));
}

#[test]
fn engines_forced_by_name_or_refused() {
    let Some(runtime) = pair() else { return };
    let (a, b, host) = (vram(&runtime, 0, 4096), vram(&runtime, 1, 4096), runtime.gtt().alloc(4096).unwrap());
    for (path, to, from) in
        [(CopyPath::Local, &a, &b), (CopyPath::Staged, &a, &host), (CopyPath::Host, &a, &a)]
    {
        let refused = runtime.copy_via(path, to.span(0, 64), from.span(64, 64), &[]).unwrap_err();
        assert!(matches!(refused, CopyError::Impossible { .. }), "{refused}");
        assert!(refused.to_string().contains(&path.to_string()), "{refused}");
    }
    let copy = runtime.copy_by(CopyEngine::Shader, a.all(), b.all(), &[]).unwrap();
    assert_eq!(copy.path(), CopyPath::PeerShader(Direction::Pull));
    copy.wait(SOON).unwrap();
}

fn all_reduce(device: &str, directory: &tempfile::TempDir) -> std::process::Output {
    let mut command = Command::new(program("p2p_allreduce"));
    command.args(["--floats", "1000", "--rounds", "1", "--json"]).env("STASIS_DEVICE", device);
    let instance = format!("{}", directory.path().file_name().unwrap().display());
    command.env("STASIS_SOFTGPU_INSTANCE", instance).output().unwrap()
}

#[test]
fn all_reduce_sums_over_every_path_and_needs_two_agents() {
    let directory = tempfile::tempdir().unwrap();
    let output = all_reduce("soft:gfx1100,gfx1100,gfx1100", &directory);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = summary["rows"].as_array().unwrap();
    let asked: Vec<&str> = rows.iter().map(|row| row["asked"].as_str().unwrap()).collect();
    let wanted = [
        "best",
        "best",
        "peer-sdma-pull",
        "peer-sdma-push",
        "peer-shader-pull",
        "peer-shader-push",
        "staged",
    ];
    assert_eq!(asked, wanted);
    for row in &rows[2..] {
        assert_eq!(row["paths"], serde_json::json!([row["asked"]]), "{row}");
    }
    let directory = tempfile::tempdir().unwrap();
    let output = all_reduce("soft:gfx1100", &directory);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("STASIS_DEVICE=soft:gfx1100*4"));
}
