// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis dispatch` and `stasis agents`: a kernel from the shell, with files as its arguments.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use stasis_tests::gpu::{compute_object, floats, skip_on_kernel_driver};
use stasis_tests::shell::{Shell, bytes_of, read_npy, write_npy};
use stasis_tests::worker::{refused, succeeded};

#[test]
fn dispatch_computes_on_npy_files_and_saves_them() {
    let shell = Shell::new();
    let (x, y) = (floats(1, 1000), floats(2, 1000));
    write_npy(&shell.path("x.npy"), "<f4", &bytes_of(&x), 1000);
    write_npy(&shell.path("y.npy"), "<f4", &bytes_of(&y), 1000);
    let said = shell.dispatch(
        "compute.co --kernel axpy --grid 1000,1,1 --block 256,1,1 --arg in:x.npy --arg inout:y.npy --arg f32:-2.5 \
         --arg u32:1000 --save 1=z.npy",
    );
    assert!(said.contains("axpy") && said.contains("ms on GPU-"), "{said}");
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x.mul_add(-2.5, *y)).collect();
    let (header, data) = read_npy(&shell.path("z.npy"));
    assert!(header.contains("<f4") && header.replace(' ', "").contains("(1000,)"), "{header}");
    assert_eq!(data, bytes_of(&expected));
}

#[test]
fn dispatch_makes_outputs_and_saves_them_as_raw_bytes_too() {
    let shell = Shell::new();
    let line = "faults.co --kernel store --grid 64 --block 64 --arg out:u32[64] --arg u32:4294967295";
    shell.dispatch(&format!("{line} --save 0=all.bin --save 0=all.npy"));
    assert_eq!(fs::read(shell.path("all.bin")).unwrap(), [0xff; 256]);
    let (header, data) = read_npy(&shell.path("all.npy"));
    assert!(header.contains("<u4") && data == [0xff; 256], "{header}");
}

#[test]
fn dispatch_reads_raw_files_and_gives_dynamic_lds() {
    let shell = Shell::new();
    let values: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
    fs::write(shell.path("from.bin"), &values).unwrap();
    shell.dispatch(
        "compute.co --kernel mirror --grid 64 --block 64 --lds 256 --arg in:from.bin --arg out:u32[64] --save 1=to.bin",
    );
    let expected: Vec<u8> = (0..64u32).rev().flat_map(u32::to_le_bytes).collect();
    assert_eq!(fs::read(shell.path("to.bin")).unwrap(), expected);
}

#[test]
fn dispatch_takes_a_raw_kernarg_block() {
    let shell = Shell::new();
    shell.dispatch(
        "faults.co --kernel store --grid 4 --block 4 --arg out:u32[4] --arg-bytes {0}efbeadde --save 0=out.bin",
    );
    assert_eq!(fs::read(shell.path("out.bin")).unwrap(), [0xef, 0xbe, 0xad, 0xde].repeat(4));
}

#[test]
fn dispatch_gives_scratch_to_kernels_that_need_it() {
    let shell = Shell::new();
    let values: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
    fs::write(shell.path("from.bin"), values).unwrap();
    let line = "compute.co --kernel scratch --grid 64 --block 64 --arg in:from.bin --arg out:u32[64]";
    shell.dispatch(&format!("{line} --save 1=to.bin"));
    assert!(fs::read(shell.path("to.bin")).unwrap().iter().any(|&byte| byte != 0));
}

#[test]
fn dispatch_refuses_wrong_arguments_with_what_would_be_right() {
    let shell = Shell::new();
    let axpy = "compute.co --kernel axpy --grid 4 --block 4";
    let store = "faults.co --kernel store --grid 4 --block 4";
    for (line, said) in [
        (format!("{axpy} --arg out:f32[4]"), "axpy takes 4 arguments, 1 were given"),
        (format!("{store} --arg out:u32[4] --arg u64:1"), "is 4 bytes, 8 were given"),
        (format!("{store} --arg out:u32[4] --arg u8:256"), "is not an argument"),
        (format!("{store} --arg out:u32[4] --arg f8:1"), "is not an argument"),
        (format!("{store} --arg out:u32[4] --arg f16:1"), "is 4 bytes, 2 were given"),
        (format!("{store} --arg out:u32[4] --arg f16:70000"), "that the number fits"),
        (format!("{store} --arg in:missing.npy --arg u32:1"), "missing.npy"),
        (format!("{store} --arg out:u32[4] --arg u32:1 --save 1=x.npy"), "names no buffer"),
        (format!("{store} --arg out:u32[4] --arg u32:1 --save 7=x.npy"), "names no buffer"),
        (format!("{store} --arg out:u32[4] --arg-bytes {{3}}"), "names no buffer"),
        (format!("{store} --arg out:u32[4] --arg-bytes 123"), "hex digits"),
        ("compute.co --kernel nothing --grid 1 --block 1".to_owned(), "No kernel nothing"),
        ("missing.co --kernel store --grid 1 --block 1".to_owned(), "Cannot open missing.co"),
        ("faults.co --kernel store --grid 1,2,3,4 --block 1".to_owned(), "dimensions"),
        ("faults.co --kernel store --grid x --block 1".to_owned(), "not a number"),
        (format!("{store} --agent 5 --arg out:u32[4] --arg u32:1"), "no agent 5"),
        (
            "faults.co --kernel store --grid 2048 --block 2048 --arg out:u32[4] --arg u32:1".to_owned(),
            "at most 1024",
        ),
    ] {
        let error = shell.refused(&line);
        assert!(error.contains(said), "{line}\nwanted {said:?}: {error}");
    }
    assert!(!shell.path("x.npy").exists());
}

#[test]
fn dispatch_refuses_files_it_cannot_use() {
    let shell = Shell::new();
    let (other, line) = (if shell.target == "gfx942" { "gfx1100" } else { "gfx942" }, "--grid 1 --block 1");
    fs::write(shell.path("other.co"), compute_object(other)).unwrap();
    let error = shell.refused(&format!("other.co --kernel axpy {line}"));
    assert!(error.contains(other) && error.contains(&shell.target), "{error}");
    fs::write(shell.path("text.co"), "no code at all").unwrap();
    assert!(shell.refused(&format!("text.co --kernel axpy {line}")).contains("Not an ELF file"));
    write_npy(&shell.path("big.npy"), ">f4", &[0; 16], 4);
    write_npy(&shell.path("short.npy"), "<f4", &[0; 15], 4);
    write_npy(&shell.path("complex.npy"), "<c8", &[0; 32], 4);
    fs::write(shell.path("not.npy"), "text").unwrap();
    for (name, said) in [
        ("big", "big-endian"),
        ("short", "15 bytes of data where its header says 16"),
        ("complex", "types known"),
        ("not", "is no .npy file"),
    ] {
        let error =
            shell.refused(&format!("faults.co --kernel store {line} --arg in:{name}.npy --arg u32:1"));
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn dispatch_that_faults_says_where_and_fails() {
    let shell = Shell::new();
    let error = shell.refused("faults.co --kernel write_at --grid 1 --block 1 --arg u64:4096 --arg u32:1");
    assert!(error.contains("0x1000") && error.contains("write_at+0x"), "{error}");
    let error = shell.refused("faults.co --kernel spin --grid 1 --block 1 --arg out:u32[1] --timeout-ms 100");
    assert!(
        error.contains("The kernel spin did not end within 100ms") && error.contains("still 1 after"),
        "{error}"
    );
}

const STORE: &str = "faults.co --kernel store --grid 64 --block 64 --arg out:u32[64] --arg u32:7";

#[test]
fn dispatch_disassembles_without_a_device() {
    let shell = Shell::new();
    fs::write(shell.path("gfx1100.co"), compute_object("gfx1100")).unwrap();
    // The device that is not selected is not even opened.
    let line = "dispatch gfx1100.co --kernel axpy --disassemble";
    let output = shell.command(line).env("STASIS_DEVICE", "none").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("axpy for gfx1100: waves of 32, "), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let line_of = |part: &str| lines.iter().position(|line| line.contains(part)).expect(part);
    assert!(lines[1].contains(" +0x0000  f4"), "{text}");
    assert!(lines[line_of("v_fmac_f32_e32")].contains("  56"), "{text}");
    // The branch over the work ends at the label, which is at the end.
    let branch = line_of("s_cbranch_execz");
    assert!(lines[branch].ends_with("  ; L0"), "{text}");
    let label = line_of("L0:");
    assert!(label > line_of("global_store_b32") && line_of("s_endpgm") == lines.len() - 1, "{text}");

    fs::write(shell.path("gfx942.co"), compute_object("gfx942")).unwrap();
    let error = shell.refused("gfx942.co --kernel axpy --disassemble");
    assert!(error.contains("gfx11") && error.contains("gfx942"), "{error}");
    assert!(shell.refused("gfx1100.co --kernel nothing --disassemble").contains("No kernel nothing"));
}

#[test]
fn dispatch_counts_what_a_kernel_does() {
    if skip_on_kernel_driver("only the software device counts") {
        return;
    }
    let shell = Shell::new();
    // A kernel without branches: every instruction of its code runs once a wave.
    let report = succeeded(&shell.run(&format!("dispatch {STORE} --disassemble --stats --json")));
    let code = report["disassembly"]["instructions"].as_array().unwrap();
    let texts: Vec<&str> = code.iter().map(|line| line["text"].as_str().unwrap()).collect();
    let twice = |prefix: &str| Some(2 * texts.iter().filter(|text| text.starts_with(prefix)).count() as u64);
    let [stats] = &report["stats"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(
        (&stats["outcome"], &stats["waves"], &stats["workgroups"]),
        (&"completed".into(), &2.into(), &1.into())
    );
    let counts = &stats["instructions"];
    assert_eq!(counts["total"].as_u64(), Some(2 * texts.len() as u64), "{report}");
    assert_eq!(counts["vmem_store"].as_u64(), twice("global_store"));
    assert_eq!(counts["smem"].as_u64(), twice("s_load"));
    assert_eq!(counts["vopd"].as_u64(), twice("v_dual"));
    assert_eq!(stats["bytes"]["global"], serde_json::json!({ "loaded": 0, "stored": 256 }));
    assert_eq!(stats["average_active_lanes"].as_f64(), Some(32.0));
    assert_eq!(stats["occupancy"]["waves_per_workgroup"].as_u64(), Some(2));
    assert!(report["milliseconds"].as_f64() > Some(0.0) && report.get("trace").is_none());

    // 40 of 64 work-items load two values and store one.
    let said = shell.dispatch(
        "compute.co --kernel axpy --grid 64 --block 64 --arg out:f32[64] --arg out:f32[64] --arg f32:2 --arg u32:40 --stats",
    );
    assert!(said.contains("axpy completed: 1 workgroups, 2 waves of 32 lanes"), "{said}");
    assert!(said.contains("global memory: 320 B loaded, 160 B stored"), "{said}");
    assert!(said.contains("occupancy: 16.00 of 16 waves per SIMD") && said.contains("ms on GPU-"), "{said}");
}

#[test]
fn dispatch_traces_the_first_wave() {
    if skip_on_kernel_driver("only the software device traces") {
        return;
    }
    let shell = Shell::new();
    let report = succeeded(&shell.run(&format!("dispatch {STORE} --disassemble --trace 5 --json")));
    let trace = report["trace"].as_array().unwrap();
    assert_eq!(trace.len(), 5);
    for (line, code) in trace.iter().zip(report["disassembly"]["instructions"].as_array().unwrap()) {
        let line = line.as_str().unwrap();
        let offset =
            format!(" +{:#06x}  {}", code["offset"].as_u64().unwrap(), code["text"].as_str().unwrap());
        assert!(line.contains(&offset) && line.contains(" exec=ffffffff"), "{line}: {offset}");
    }
    assert!(trace.iter().any(|line| line.as_str().unwrap().contains("=0x7")), "{trace:?}");

    // A dispatch that fails shows how far it got.
    let output = shell.run(
        "dispatch faults.co --kernel write_at --grid 1 --block 1 --arg u64:4096 --arg u32:1 --trace 100 --stats",
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(refused(&output).contains("write_at+0x"));
    assert!(said.contains("exec=00000001 stopped: Write of 0x1000 is not allowed"), "{said}");
    assert!(said.contains("write_at exception: 0 workgroups, 0 waves"), "{said}");
    let output = shell.run(
        "dispatch faults.co --kernel spin --grid 1 --block 1 --arg out:u32[1] --timeout-ms 300 --trace 5 --stats",
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.lines().nth(3).unwrap().contains("global_load_b32"), "{said}");
    assert!(said.lines().nth(5).unwrap().starts_with("spin aborted: 0 workgroups, 0 waves"), "{said}");
}

#[test]
fn dispatch_chooses_the_engine() {
    if skip_on_kernel_driver("only the software device has engines") {
        return;
    }
    let shell = Shell::new();
    for engine in ["interp", "jit", "quick", "auto"] {
        let log = shell.path(engine);
        let line = format!("dispatch {STORE} --engine {engine} --save 0={engine}.bin");
        let output = shell
            .command(&line)
            .env("STASIS_LOG", "softgpu_waves=debug")
            .env("STASIS_LOG_FILE", &log)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(shell.path(&format!("{engine}.bin"))).unwrap(), [7, 0, 0, 0].repeat(64));
        // Only these generate code for so short a kernel.
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            let said = fs::read_to_string(&log).unwrap_or_default();
            assert_eq!(said.contains(" steps at 0x"), ["jit", "quick"].contains(&engine), "{engine}: {said}");
        }
    }
}

#[test]
fn dispatch_refuses_wishes_that_cannot_be_met() {
    let shell = Shell::new();
    for (line, said) in [
        (format!("{STORE} --engine turbo"), "possible values: interp, jit, quick, auto"),
        (format!("{STORE} --trace 0"), "0 is not in 1..=1000000"),
        (format!("{STORE} --trace many"), "invalid digit"),
        ("faults.co --kernel store --disassemble --stats".to_owned(), "--grid"),
        ("faults.co --kernel store --disassemble --grid 4".to_owned(), "--block"),
        ("faults.co --kernel store --block 4".to_owned(), "--grid"),
    ] {
        let error = shell.refused(&line);
        assert!(error.contains(said), "{line}\nwanted {said:?}: {error}");
    }
    for wish in ["--engine interp", "--trace 5", "--stats"] {
        let line = format!("dispatch {STORE} {wish}");
        let error = refused(&shell.command(&line).env("STASIS_DEVICE", "kfd").output().unwrap());
        assert!(error.contains("only the software device"), "{line}: {error}");
    }
}

#[test]
fn agents_are_listed_as_json_and_prose() {
    let shell = Shell::new();
    let listing = succeeded(&shell.run("agents --json"));
    let agents = listing["agents"].as_array().unwrap();
    assert!(!agents.is_empty());
    for agent in agents {
        assert!(agent["uuid"].as_str().unwrap().starts_with("GPU-"));
        assert!(agent["vram_bytes"].as_u64() >= agent["vram_available"].as_u64());
        assert!(agent["compute_units"].as_u64() > Some(0));
        assert!(
            !agent["caches"].as_array().unwrap().is_empty() && !agent["links"].as_array().unwrap().is_empty()
        );
    }
    let prose = shell.run("agents");
    let text = String::from_utf8_lossy(&prose.stdout).into_owned();
    assert!(prose.status.success() && text.contains(agents[0]["uuid"].as_str().unwrap()), "{text}");
}

#[test]
fn agents_say_which_engine_and_which_vectors_execute_waves() {
    if skip_on_kernel_driver("only the software device has engines") {
        return;
    }
    let shell = Shell::new();
    // A device of its own, which is started with this environment.
    let instance = format!("engine-{}", std::process::id());
    let say = |line: &str| {
        let mut command = shell.command(line);
        command.env("STASIS_SOFTGPU_INSTANCE", &instance);
        command.env("SOFTGPU_CPU", "baseline").env("SOFTGPU_ENGINE", "interp").output().unwrap()
    };
    let engine = succeeded(&say("agents --json"))["engine"].clone();
    assert_eq!((&engine["engine"], &engine["cpu"]), (&"interp".into(), &"baseline".into()), "{engine}");
    assert!(["baseline", "avx2", "avx512"].contains(&engine["cpu_best"].as_str().unwrap()), "{engine}");
    let prose = String::from_utf8(say("agents").stdout).unwrap();
    assert!(prose.contains("waves by engine interp with baseline"), "{prose}");
}

#[test]
fn vendor_runtime_is_asked_and_what_it_says_is_reported() {
    let shell = Shell::new();
    let listing = succeeded(&shell.run("agents --json --vendor"));
    // libhsa may be absent, or find no device: the command says so, and lists this runtime's agents nevertheless.
    let vendor = listing["vendor"].as_object().unwrap();
    assert!(vendor.contains_key("Ok") || vendor["Err"].as_str().unwrap().len() > 20, "{vendor:?}");
    assert!(!listing["agents"].as_array().unwrap().is_empty());
}

#[test]
fn inspect_of_what_is_no_checkpoint_is_refused() {
    let shell = Shell::new();
    let error = refused(&shell.run("inspect --json compute.co"));
    assert!(error.contains("not a Stasis image"), "{error}");
    let error = refused(&shell.run("inspect ."));
    assert!(error.contains("not a complete checkpoint"), "{error}");
    assert!(refused(&shell.run("inspect nothing")).contains("Cannot find nothing"));
}

#[test]
fn inspect_and_restore_wait_for_no_fifo_and_read_no_endless_file() {
    let shell = Shell::new();
    for (manifest, said) in [("manifest.json", "manifest.json is"), ("session.json", "session.json is")] {
        for (target, what) in
            [("fifo", "a FIFO"), ("/dev/zero", "a symbolic link"), ("directory", "a directory")]
        {
            let images = shell.path("images");
            let _ = fs::remove_dir_all(&images);
            fs::create_dir(&images).unwrap();
            let path = images.join(manifest);
            match target {
                "fifo" => drop(Command::new("mkfifo").arg(&path).status().unwrap()),
                "directory" => fs::create_dir(&path).unwrap(),
                endless => std::os::unix::fs::symlink(endless, &path).unwrap(),
            }
            for verb in ["inspect", "inspect --verify --json", "restore"] {
                let error = refused(&shell.run(&format!("{verb} images")));
                assert!(error.contains(said) && error.contains(what), "{verb}: {error}");
            }
        }
    }
}

#[test]
fn hostile_sessions_are_refused_by_name() {
    let shell = Shell::new();
    fs::create_dir(shell.path("images")).unwrap();
    let deep = "[".repeat(100_000);
    for (text, said) in [
        (r#"{"layout":2,"id":"x","trees":[-1]}"#, "has the pid -1"),
        (r#"{"layout":2,"id":"x","trees":[1]}"#, "has the pid 1"),
        (r#"{"layout":2,"id":"x","trees":[7,7]}"#, "has \"7\" twice"),
        (r#"{"layout":3,"id":"x","trees":[7]}"#, "is damaged"),
        (r#"{"layout":4,"id":"x","trees":[7]}"#, "has layout 4"),
        (r#"{"layout":2,"id":"x","trees":[7]}"#, "images/7"),
        (&deep, "is not a manifest of this version"),
    ] {
        fs::write(shell.path("images/session.json"), text).unwrap();
        for verb in ["inspect", "restore"] {
            let error = refused(&shell.run(&format!("{verb} images")));
            assert!(error.contains(said), "{verb} {text:.40}: {error}");
        }
    }
}
