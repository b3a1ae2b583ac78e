// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch` with wrong files and sizes, small types, workgroups, repeats; its reports of settings and limits,
//! and its behaviour when its output is not read.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use stasis_tests::gpu::{compile, skip_on_kernel_driver};
use stasis_tests::shell::{Shell, bytes_of, read_npy, write_npy};
use stasis_tests::worker::{Worker, refused, succeeded};
use stasis_tests::{criu, program};

const STORE: &str = "faults.co --kernel store";

#[test]
fn command_whose_output_nobody_reads_ends_by_sigpipe_and_without_a_word() {
    let shell = Shell::new();
    let pid = std::process::id();
    for line in [
        "agents --links".to_owned(),
        "agents --json".to_owned(),
        "dispatch faults.co".to_owned(),
        format!("dispatch {STORE} --grid 64 --block 64 --arg out:u32[64] --arg u32:7 --json"),
        format!("preflight {pid}"),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = shell.command(&line).stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.signal(), &*said), (Some(13), ""), "{line}");
    }
    let full = fs::File::create("/dev/full").unwrap();
    let error = refused(&shell.command("agents").stdout(full).output().unwrap());
    assert!(error.contains("Cannot write to the standard output") && !error.contains("panicked"), "{error}");
}

#[test]
fn checkpoint_and_restore_are_done_whoever_reads_their_output() {
    let mut worker = Worker::start(&[]);
    let into_nothing = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(program("stasis"));
        command.args(arguments).env("STASIS_CRIU", criu()).env_remove("STASIS_DEVICE");
        let output = command.stdout(writer.try_clone().unwrap()).stderr(writer).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", output.status);
    };
    let (pid, directory) = (worker.pid().to_string(), worker.path("frozen"));
    let directory = directory.to_str().unwrap();
    into_nothing(&["checkpoint", &pid, directory]);
    worker.bury();
    into_nothing(&["restore", directory]);
    worker.wait_rounds(1);
    worker.finish();
}

#[test]
fn dispatch_without_a_kernel_lists_kernels_and_arguments() {
    let shell = Shell::new();
    let prose = shell.dispatch("faults.co");
    assert!(prose.contains("kernels for") && prose.contains("\nspin: workgroups of at most 1024"), "{prose}");
    let store = shell.dispatch(STORE);
    let lines: Vec<&str> = store.lines().collect();
    assert!(lines[0].contains("1 kernel for") && lines[1].starts_with("store: "), "{store}");
    assert!(lines[2].contains("--arg 0") && lines[2].contains("global_buffer"), "{store}");
    assert!(
        lines[3].contains("--arg 1") && lines[3].contains("by_value") && lines[3].contains("8 +4"),
        "{store}"
    );

    fs::write(shell.path("limited.co"), compile("limited.cl", &shell.target, &["-x", "cl"])).unwrap();
    let listing = succeeded(&shell.run("dispatch limited.co --json"));
    let kernels = listing["kernels"].as_array().unwrap();
    let named = |name: &str| kernels.iter().find(|kernel| kernel["name"] == name).unwrap();
    assert_eq!(named("exact")["required_workgroup"], serde_json::json!([32, 2, 1]));
    assert_eq!(
        (&named("small")["max_workgroup"], named("small").get("required_workgroup")),
        (&128.into(), None)
    );
    let argument = &named("exact")["arguments"][0];
    assert_eq!(
        (&argument["index"], &argument["kind"], &argument["bytes"]),
        (&0.into(), &"global_buffer".into(), &8.into())
    );

    let error = shell.refused("limited.co --grid 64 --block 64 --arg out:u32[64]");
    assert!(error.contains("2 kernels: name one by --kernel: ") && error.contains("exact"), "{error}");
    assert!(shell.refused("limited.co --kernel none").contains("No kernel none"));
}

#[test]
fn dispatch_counts_workgroups_and_knows_a_required_size() {
    let shell = Shell::new();
    write_npy(&shell.path("x.npy"), "<f4", &bytes_of(&[1.5; 700]), 700);
    shell.dispatch(
        "compute.co --kernel axpy --groups 3 --block 256 --arg in:x.npy --arg out:f32[700] --arg f32:2 --arg u32:700 \
         --save 1=y.bin",
    );
    assert!(fs::read(shell.path("y.bin")).unwrap() == bytes_of(&[3.0; 700]));
    fs::write(shell.path("limited.co"), compile("limited.cl", &shell.target, &["-x", "cl"])).unwrap();
    shell.dispatch("limited.co --kernel exact --groups 1 --arg out:u32[64] --save 0=exact.bin");
    assert_eq!(fs::read(shell.path("exact.bin")).unwrap(), [1, 0, 0, 0].repeat(64));
    for (line, said) in [
        (format!("{STORE} --groups 1 --grid 1 --block 1"), "cannot be used with"),
        (
            format!("{STORE} --groups 4294967295 --block 64 --arg out:u32[4] --arg u32:7"),
            "4294967295 workgroups of 64",
        ),
        (format!("{STORE} --groups 1 --arg out:u32[4] --arg u32:7"), "--block is missing"),
    ] {
        let error = shell.refused(&line);
        assert!(error.contains(said), "{line}\nwanted {said:?}: {error}");
    }
}

#[test]
fn dispatch_takes_and_saves_the_small_types() {
    let shell = Shell::new();
    fs::write(shell.path("typed.co"), compile("typed.c", &shell.target, &[])).unwrap();
    // 1.5 and 0 as f16; -3 and 0; NumPy's own name of a bool.
    write_npy(&shell.path("halves.npy"), "<f2", &[0, 0x3e, 0, 0], 2);
    write_npy(&shell.path("bytes.npy"), "|i1", &[0xfd, 0], 2);
    write_npy(&shell.path("flags.npy"), "|b1", &[0], 1);
    shell.dispatch(
        "typed.co --grid 1 --block 1 --arg inout:halves.npy --arg out:bf16[1] --arg inout:bytes.npy --arg inout:flags.npy \
         --arg f16:-2 --arg bf16:1.5 --arg i8:-4 --arg bool:true --save 0=h.npy --save 1=b.npy --save 2=i.npy --save 3=f.npy",
    );
    for (name, descr, data) in [
        ("h.npy", "<f2", &[0, 0x3e, 0, 0xc2][..]),
        ("b.npy", "<u2", &[0xc0, 0x3f]),
        ("i.npy", "|i1", &[0xfd, 0xf9]),
        ("f.npy", "|b1", &[1]),
    ] {
        let (header, found) = read_npy(&shell.path(name));
        assert!(header.contains(descr), "{name}: {header}");
        assert_eq!(found, data, "{name}");
    }
    let error = shell.refused("typed.co --grid 1 --block 1 --arg bool:2");
    assert!(error.contains("bool, u8, i8") && error.contains("bf16"), "{error}");
}

#[test]
fn dispatch_repeats_and_says_how_long_it_took() {
    let shell = Shell::new();
    write_npy(&shell.path("x.npy"), "<f4", &bytes_of(&[1.0; 64]), 64);
    let line = "compute.co --kernel axpy --grid 64 --block 64 --arg in:x.npy --arg out:f32[64] --arg f32:2 --arg u32:64";
    let report =
        succeeded(&shell.run(&format!("dispatch {line} --repeat 4 --warm-up 3 --json --save 1=y.bin")));
    let runs = &report["runs"];
    assert_eq!((&runs["repeat"], &runs["warm_up"]), (&4.into(), &3.into()));
    let ms = |name: &str| runs[name].as_f64().unwrap();
    assert!(
        0.0 < ms("min_ms") && ms("min_ms") <= ms("median_ms") && ms("median_ms") <= ms("max_ms"),
        "{runs}"
    );
    assert_eq!(report["milliseconds"], runs["median_ms"]);
    // Seven runs have each added 2.
    assert_eq!(fs::read(shell.path("y.bin")).unwrap(), bytes_of(&[14.0; 64]));
    let prose = shell.dispatch(&format!("{line} --repeat 3"));
    assert!(
        prose.contains("axpy: min ") && prose.contains(", median ") && prose.contains(", 3 runs"),
        "{prose}"
    );
    assert!(succeeded(&shell.run(&format!("dispatch {line} --json"))).get("runs").is_none());
    assert!(shell.refused(&format!("{line} --repeat 0")).contains("0 is not in 1..=1000000"));
}

#[test]
fn dispatch_counts_beside_an_engine_and_beside_repeats() {
    if skip_on_kernel_driver("only the software device counts") {
        return;
    }
    let shell = Shell::new();
    let line = format!(
        "dispatch {STORE} --grid 64 --block 64 --arg out:u32[64] --arg u32:7 --stats --trace 4 --json"
    );
    let interpreted = succeeded(&shell.run(&line));
    let counts = |report: &serde_json::Value| report["stats"][0]["instructions"].clone();
    assert!(counts(&interpreted)["total"].as_u64() > Some(0), "{interpreted}");
    for wish in ["--engine jit", "--engine auto", "--repeat 5 --warm-up 2"] {
        let report = succeeded(&shell.run(&format!("{line} {wish} --save 0=out.bin")));
        assert_eq!(counts(&report), counts(&interpreted), "{wish}");
        assert_eq!(report["stats"].as_array().unwrap().len(), 1, "one run is counted: {report}");
        assert_eq!(report["trace"].as_array().unwrap().len(), 4, "{report}");
        assert!(report["milliseconds"].as_f64() > Some(0.0), "{report}");
        assert_eq!(fs::read(shell.path("out.bin")).unwrap(), [7, 0, 0, 0].repeat(64));
    }
}

#[test]
fn kernel_that_wants_the_host_is_named_before_the_launch() {
    let shell = Shell::new();
    fs::write(shell.path("hosted.co"), compile("hosted.c", &shell.target, &[])).unwrap();
    let line = "hosted.co --groups 1 --block 1 --arg out:u64[1] --save 0=out.bin";
    let error = shell.refused(line);
    assert!(error.contains("hosted may want") && error.contains("hidden_heap_v1"), "{error}");
    assert!(error.contains("--without-services") && !shell.path("out.bin").exists(), "{error}");
    shell.dispatch(&format!("{line} --without-services"));
    assert_eq!(fs::read(shell.path("out.bin")).unwrap(), 1u64.to_le_bytes());
    assert!(shell.dispatch("hosted.co").contains("hidden_heap_v1"));
}

#[test]
fn what_a_kernel_prints_goes_where_no_script_looks_for_json() {
    let shell = Shell::new();
    fs::write(shell.path("print.co"), compile("print.c", &shell.target, &[])).unwrap();
    let line = "dispatch print.co --kernel print --groups 1 --block 2 --arg u32:1";
    let lines = ["group 0, lane 0, round 0.", "group 0, lane 1, round 0."];
    let prose = shell.run(line);
    let (out, error) = (text(&prose.stdout), text(&prose.stderr));
    assert!(lines.iter().all(|line| out.contains(line) && !error.contains(line)), "{out}{error}");
    let scripted = shell.run(&format!("{line} --json"));
    succeeded(&scripted);
    let (out, error) = (text(&scripted.stdout), text(&scripted.stderr));
    assert!(lines.iter().all(|line| error.contains(line) && !out.contains(line)), "{out}{error}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn files_that_are_none_are_refused_at_once() {
    let shell = Shell::new();
    mkfifo(&shell.path("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    mkfifo(&shell.path("fifo.npy"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    for (line, said) in [
        (
            format!("{STORE} --grid 1 --block 1 --arg in:fifo --arg u32:1"),
            "fifo is a FIFO, not a regular file",
        ),
        (format!("{STORE} --grid 1 --block 1 --arg inout:fifo.npy --arg u32:1"), "fifo.npy is a FIFO"),
        (format!("{STORE} --grid 1 --block 1 --arg in:/dev/zero --arg u32:1"), "/dev/zero is a device"),
        (format!("{STORE} --grid 1 --block 1 --arg in:. --arg u32:1"), ". is a directory"),
        ("fifo --kernel store --grid 1 --block 1".to_owned(), "fifo is a FIFO"),
        ("/dev/zero".to_owned(), "/dev/zero is a device"),
    ] {
        let error = shell.refused(&line);
        assert!(error.contains(said), "{line}\nwanted {said:?}: {error}");
    }
    assert!(refused(&shell.run("inspect fifo")).contains("FIFO"));
}

#[test]
fn sizes_that_cannot_be_had_are_refused_by_name() {
    let shell = Shell::new();
    for size in ["u32[1099511627776]", "u8[18446744073709551615]", "f64[2305843009213693951]"] {
        let error = shell.refused(&format!("{STORE} --grid 1 --block 1 --arg out:{size} --arg u32:1"));
        assert!(error.contains(&format!("--arg 0 (out:{size}) cannot be made")), "{error}");
        assert!(error.contains("are available to"), "{error}");
    }
    let sparse = fs::File::create(shell.path("sparse.bin")).unwrap();
    sparse.set_len(1 << 43).unwrap();
    let error = shell.refused(&format!("{STORE} --grid 1 --block 1 --arg in:sparse.bin --arg u32:1"));
    assert!(error.contains("sparse.bin has 8796093022208 bytes, more than"), "{error}");
}

#[test]
fn want_of_descriptors_is_not_told_as_want_of_memory() {
    if skip_on_kernel_driver("only the software device has an open file for each buffer") {
        return;
    }
    let shell = Shell::new();
    let mut named = 0;
    for limit in 10..64 {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg(program("stasis")).current_dir(shell.path("."));
        command.args(format!("dispatch {STORE} --grid 4 --block 4 --arg out:u32[4] --arg u32:7").split(' '));
        command.env("STASIS_SOFTGPU_INSTANCE", format!("few-{}-{limit}", std::process::id()));
        let output = command.env("STASIS_DEVICE", "soft:gfx1100").output().unwrap();
        if output.status.success() {
            break;
        }
        let error = refused(&output);
        assert!(!error.contains("out of memory") && !error.contains("panicked"), "{limit}: {error}");
        assert!(error.contains("Too many open files") || error.contains("ulimit -n"), "{limit}: {error}");
        named += u32::from(error.contains(&format!("(EMFILE): this process may have {limit},")));
    }
    assert!(named > 0, "no limit was one that buffers ran into");
}

#[test]
fn setting_that_means_nothing_is_told_by_who_started_the_device() {
    if skip_on_kernel_driver("only the software device has settings") {
        return;
    }
    let shell = Shell::new();
    let agents = |name: &str, value: &str| {
        let mut command = shell.command("agents");
        let instance = format!("settings-{}-{name}", std::process::id());
        command.env("STASIS_SOFTGPU_INSTANCE", instance).env(name, value).output().unwrap()
    };
    for (name, value, accepted) in [
        ("SOFTGPU_ENGINE", "jitt", "interp, jit, quick or auto"),
        ("SOFTGPU_CPU", "avx", "baseline, avx2 or avx512"),
        ("SOFTGPU_KERNEL", "5.4", "6.12, 7.3 (the default) or fixed"),
        ("SOFTGPU_TRACE", "/tmp/trace", "FILE:INSTRUCTIONS"),
    ] {
        let error = refused(&agents(name, value));
        assert!(
            error.contains(&format!("{name} is {value:?}; it can be ")) && error.contains(accepted),
            "{error}"
        );
    }
    let output = agents("SOFTGPU_ENGIN", "jit");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("SOFTGPU_ENGIN means nothing to softgpud"), "{said}");
    let output = agents("SOFTGPU_ENGINE", "interp");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
