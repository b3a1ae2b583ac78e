// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole code objects from clang-19: this crate's disassembly equals llvm-objdump's for every instruction.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use softgpu_isa::{Enc, WaveSize, decode, info};

use crate::llvm::run;

fn compile(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/kernels.c");
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.o"));
    let status = Command::new("clang-19")
        .args(["--target=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-nogpulib", "-c", "-o"])
        .arg(&object)
        .args(options)
        .arg(&source)
        .status()
        .unwrap_or_else(|error| panic!("cannot start clang-19: {error}; install the package clang-19"));
    assert!(status.success(), "clang-19 failed on {}", source.display());
    object
}

/// Text and words of every instruction of `object`, in address order.
fn objdump(object: &Path, wave: WaveSize) -> Vec<(String, Vec<u32>)> {
    let path = object.to_str().expect("the target folder's path is UTF-8");
    let attributes = match wave {
        WaveSize::W32 => "--mattr=+wavefrontsize32",
        WaveSize::W64 => "--mattr=+wavefrontsize64",
    };
    let output = run("llvm-objdump-19", "llvm-19", &["-d", "--mcpu=gfx1100", attributes, path], "");
    output
        .lines()
        .filter_map(|line| line.trim().split_once("//"))
        .map(|(text, comment)| {
            let hex = comment.split_once(':').map_or("", |(_, hex)| hex);
            let is_word =
                |token: &&str| token.len() == 8 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
            let words = hex.split_whitespace().take_while(is_word);
            let words = words.map(|word| u32::from_str_radix(word, 16).expect("checked to be hexadecimal"));
            (text.trim().to_owned(), words.collect())
        })
        .collect()
}

fn check(name: &str, options: &[&str], wave: WaveSize) -> BTreeSet<&'static str> {
    let listing = objdump(&compile(name, options), wave);
    assert!(listing.len() > 300, "{name}: only {} instructions", listing.len());
    let mut seen = BTreeSet::new();
    for (text, words) in &listing {
        let inst = decode(words).unwrap_or_else(|error| panic!("{text} {words:08x?}: {error}"));
        assert_eq!(&inst.text(wave).to_string(), text, "{words:08x?}");
        assert_eq!(usize::from(inst.size), words.len() * 4, "{text}");
        seen.insert(info(inst.op).name);
        if inst.enc == Enc::Vopd {
            seen.extend(inst.second.map(|second| info(second.op).name));
        }
    }
    println!("{name}: {} instructions, {} operations", listing.len(), seen.len());
    seen
}

#[test]
fn compiled_kernels_disassemble_as_objdump_says() {
    let mut seen = check("o3", &["-O3"], WaveSize::W32);
    seen.extend(check("o0", &["-O0"], WaveSize::W32));
    seen.extend(check("fast", &["-O3", "-ffast-math", "-mcumode"], WaveSize::W32));
    println!("{} operations in all", seen.len());
    assert!(seen.len() > 120, "the corpus uses {} operations only", seen.len());
}

#[test]
fn wave64_kernels_disassemble_as_objdump_says() {
    check("wave64", &["-O3", "-mwavefrontsize64"], WaveSize::W64);
}
