// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an executor's own memory lies, beside that of its client.
//!
//! A buffer is mapped in the executor at the client's address. A client that was not written for this device has its
//! buffers wherever the kernel put them: near its libraries, its heap or its stack. The kernel chooses the executor's own
//! addresses at random from the same regions. An executor that finds itself too near to its client executes itself again.
//!
//! INVARIANT: an executor that serves has no mapping where its client's heap, stack or mappings can grow to by
//! [`ROOM`], unless the kernel gives every process the same addresses.

use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::personality::{self, Persona};
use nix::unistd::Pid;

use super::error::ServeError;

/// How far a client's heap may grow upwards, and its mappings downwards.
const ROOM: u64 = 64 << 30;
/// How far its stack may grow: many times the usual limit.
const STACK_ROOM: u64 = 256 << 20;
/// How far the executor's own mappings may grow: stacks of threads, generated code.
const OWN_ROOM: u64 = 8 << 30;
/// Where the kernel puts mappings that nobody asked an address for; programs and their heaps lie lower (`mmap_base`).
const MAPPINGS: u64 = 0x7000_0000_0000;
/// What the kernel maps into every process at the same address.
const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
/// How often an executor tries; one try in four fails.
const TRIES: u32 = 40;
/// The argument with which an executor counts its tries.
pub const TRIES_ARGUMENT: &str = "--tries";

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<u64>,
    name: String,
}

/// Executes this program again, if its addresses are too near to the client's. Returns when they are not, or after too many
/// tries.
///
/// # Errors
/// [`ServeError::Maps`] if the mappings cannot be read, [`ServeError::Spawn`] if the program cannot be executed again.
pub(super) fn settle(client: Pid, tries: u32) -> Result<(), ServeError> {
    let own = std::fs::read_to_string("/proc/self/maps").map_err(ServeError::Maps)?;
    // A client that is gone needs no room.
    let theirs = std::fs::read_to_string(format!("/proc/{client}/maps")).unwrap_or_default();
    let own = parse(&own);
    let Some(near) = nearest(&own, &zones(&parse(&theirs))) else { return Ok(()) };
    if tries >= TRIES {
        tracing::warn!(target: "server", %client, range = ?near.range, name = near.name,
            "this process' addresses stay near to its client's");
        return Ok(());
    }
    // A debugger turns the choice at random off for all that it starts.
    if let Ok(persona) = personality::get() {
        let _ = personality::set(persona & !Persona::ADDR_NO_RANDOMIZE);
    }
    let mut again = Command::new("/proc/self/exe");
    again.arg0("softgpud").arg("executor").arg(client.to_string());
    Err(ServeError::Spawn(again.args([TRIES_ARGUMENT, &(tries + 1).to_string()]).exec()))
}

fn parse(maps: &str) -> Vec<Mapping> {
    let mapping = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let name = line.split_ascii_whitespace().nth(5).unwrap_or_default().to_owned();
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        (range.start != VSYSCALL).then_some(Mapping { range, name })
    };
    maps.lines().filter_map(mapping).collect()
}

/// The addresses that a client has or may have.
fn zones(client: &[Mapping]) -> Vec<Range<u64>> {
    let zone = |mapping: &Mapping| {
        let Range { start, end } = mapping.range;
        match mapping.name.as_str() {
            "[stack]" => start.saturating_sub(STACK_ROOM)..end,
            "[vdso]" | "[vvar]" | "[vvar_vclock]" => start..end,
            _ if start >= MAPPINGS => start.saturating_sub(ROOM)..end,
            _ => start..end.saturating_add(ROOM),
        }
    };
    client.iter().map(zone).collect()
}

/// A mapping of the executor's that lies in a zone.
fn nearest<'a>(own: &'a [Mapping], zones: &[Range<u64>]) -> Option<&'a Mapping> {
    own.iter().find(|mapping| {
        let is_special = mapping.name.starts_with('[') && mapping.name != "[heap]";
        let room = if mapping.range.start >= MAPPINGS && !is_special { OWN_ROOM } else { 0 };
        let range = mapping.range.start.saturating_sub(room)..mapping.range.end;
        zones.iter().any(|zone| zone.start < range.end && range.start < zone.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "\
        555500000000-555500100000 r-xp 00000000 fe:00 1 /usr/bin/python3\n\
        555500100000-555508000000 rw-p 00000000 00:00 0 [heap]\n\
        7f0000000000-7f0000200000 r-xp 00000000 fe:00 2 /usr/lib/libc.so.6\n\
        7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]\n\
        7ffc00200000-7ffc00202000 r-xp 00000000 00:00 0 [vdso]\n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    fn is_near(line: &str) -> bool {
        nearest(&parse(line), &zones(&parse(CLIENT))).is_some()
    }

    #[test]
    fn zones_are_what_a_client_may_grow_to() {
        for (own, near) in [
            // Above the heap, beyond what it may grow to, and before the program.
            ("555600000000-555600100000 r-xp 0 0:0 1 /bin/softgpud", true),
            ("556600000000-556600100000 r-xp 0 0:0 1 /bin/softgpud", false),
            ("5554f0000000-5554f0100000 r-xp 0 0:0 1 /bin/softgpud", false),
            // Below the mappings, far below, and above: where only its own growth could reach them.
            ("7eff00000000-7eff00100000 rw-p 0 0:0 0", true),
            ("7ee000000000-7ee000100000 rw-p 0 0:0 0", false),
            ("7f0100000000-7f0100100000 rw-p 0 0:0 0", true),
            ("7f1000000000-7f1000100000 rw-p 0 0:0 0", false),
            // Stacks may be neighbours.
            ("7ffc00050000-7ffc00150000 rw-p 0 0:0 0 [stack]", true),
            ("7ffd00050000-7ffd00150000 rw-p 0 0:0 0 [stack]", false),
            ("7ffc00201000-7ffc00203000 r-xp 0 0:0 0 [vdso]", true),
            ("ffffffffff600000-ffffffffff601000 --xp 0 0:0 0 [vsyscall]", false),
        ] {
            assert_eq!(is_near(own), near, "{own}");
        }
    }
}
