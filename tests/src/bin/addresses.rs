// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of KFD's device files, under `stasis run`: opens the device, and looks where its executor's memory lies. Prints
//! `ADDRESSES apart`, or says which mappings are neighbours and exits with 1.

use std::fs;
use std::ops::Range;
use std::process::ExitCode;

/// How far a client's heap may grow upwards at least, and its mappings downwards, without meeting the executor.
const ROOM: u64 = 32 << 30;
/// How far the executor's mappings may grow at least.
const ITS_ROOM: u64 = 4 << 30;
/// Where the kernel puts mappings that nobody asked an address for.
const MAPPINGS: u64 = 0x7000_0000_0000;
/// What the kernel maps into every process at the same address.
const VSYSCALL: &str = "ffffffffff600000";

/// The addresses and names of a process' mappings.
fn maps(pid: &str) -> Vec<(Range<u64>, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process that runs has mappings");
    let lines = text.lines().filter(|line| !line.starts_with(VSYSCALL));
    let mapping = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        Some((range, words.nth(4).unwrap_or_default().to_owned()))
    };
    lines.filter_map(mapping).collect()
}

/// The executor of a client.
fn executor(client: u32) -> Option<String> {
    let wanted = format!("client {client}\n");
    let processes = fs::read_dir("/proc").expect("processes can be listed").flatten();
    let mut names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| fs::read_to_string(format!("/proc/{name}/comm")).is_ok_and(|comm| comm == wanted))
}

fn main() -> ExitCode {
    let device = fs::File::options().read(true).write(true).open("/dev/kfd");
    let _device = device.expect("the device opens");
    let executor = executor(std::process::id()).expect("there is an executor");
    let is_special = |name: &str| name.starts_with('[') && name != "[heap]";
    for (own, own_name) in maps("self") {
        for (theirs, their_name) in maps(&executor) {
            let (below, above) = match own.start >= MAPPINGS {
                _ if is_special(&own_name) || is_special(&their_name) => (0, 0),
                true => (ROOM, ITS_ROOM),
                false => (0, ROOM),
            };
            if own.start.saturating_sub(below) < theirs.end && theirs.start < own.end.saturating_add(above) {
                println!("{own:x?} {own_name} and the executor's {theirs:x?} {their_name}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("ADDRESSES apart");
    ExitCode::SUCCESS
}
