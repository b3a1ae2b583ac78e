// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the GPU that others have, too: by a DMABuf, or inherited. Among the processes of a session it stays shared;
//! whoever has it and is in none would keep memory that nobody else has any more.
//!
//! INVARIANT: who holds it is flags by the inode behind descriptors and mappings, as the runtime tells it. The software
//! device is the driver, and no holder.

use std::collections::HashMap;
use std::fs;

use super::finding::{Finding, Severity};
use super::run_device::{Executors, names_a_run};
use super::scene::Scene;
use super::shared::{Place, Shared, name, search};
use super::tree::{FileId, Process};

/// Whether a file of this name, as `/proc` shows it, is memory of a GPU that can be shared.
pub fn is_device_memory(name: &str) -> bool {
    // The software device's are its memfds.
    let soft = name.strip_prefix("/memfd:softgpu:");
    name.starts_with("/dmabuf")
        || soft.is_some_and(|kind| kind.starts_with("vram") || kind.starts_with("gtt"))
}

/// Whether a process is the software device's.
pub(super) fn is_driver(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Behind one that was built anew since it was started, the system writes that.
    name.trim_end_matches(" (deleted)") == "softgpud"
}

/// The places of GPU memory in a process.
fn places(process: &Process) -> impl Iterator<Item = (FileId, Place)> {
    let place =
        |place: String, name: &str| Place { pid: process.pid, place, name: name.to_owned(), file: None };
    let fds = process.descriptors().iter().filter(|fd| is_device_memory(&fd.link));
    let fds = fds.map(move |fd| (fd.file.id, place(fd.place(), &fd.link)));
    let maps = process.mappings().iter().filter(|mapping| is_device_memory(&mapping.name));
    fds.chain(maps.map(move |mapping| (mapping.id, place(mapping.place(), &mapping.name))))
}

/// Looks for those who have memory of the tree's runtimes and would be left with it.
pub fn judge(scene: &Scene<'_>, found: &mut Vec<Finding>) {
    let mut pieces = HashMap::new();
    // All of a run's tree is dumped as it is; its processes need no runtime to have such memory again.
    for process in scene.tree.iter().filter(|process| process.is_ours() || scene.executors.is_some()) {
        for (id, place) in places(process) {
            pieces.entry(id).or_insert(place);
        }
    }
    for fd in scene.executors.into_iter().flat_map(Executors::memory) {
        let (pid, place) = (scene.root().pid, "device".to_owned());
        pieces.entry(fd.file.id).or_insert_with(|| Place { pid, place, name: fd.link.clone(), file: None });
    }
    // Not the device itself, should it be a child.
    let is_bystander =
        |process: &&Process| scene.executors.is_none() && !process.is_ours() && !is_driver(process.pid);
    let bystanders = scene.tree.iter().filter(is_bystander);
    // DMABufs of a real driver are judged with all other descriptors and mappings.
    let is_soft = |(_, place): &(FileId, Place)| place.name.starts_with("/memfd:");
    for (id, place) in bystanders.filter_map(|process| places(process).find(is_soft)) {
        if !pieces.contains_key(&id) && names_a_run(place.pid) {
            found.push(
                Finding::new(Severity::Refused, place.pid, place.place, place.name)
                    .why("it is memory of a `stasis run` whose softgpud takes no orders: that has ended, or is of an older build")
                    .remedy("start the program again with this `stasis run`"),
            );
            continue;
        }
        let of = pieces.get(&id).map_or(String::new(), |owner| format!(" of process {}", owner.pid));
        found.push(
            Finding::new(Severity::Refused, place.pid, place.place, place.name)
                .why(format!("it is GPU memory{of}, and this process has no Stasis runtime that would share it again"))
                .remedy("close it before the checkpoint (or before the process is started: it may have been inherited)"),
        );
    }
    if pieces.is_empty() {
        return;
    }
    let inside = |pid: i32| {
        scene.session.contains(&pid) || scene.tree.iter().any(|process| process.pid == pid) || is_driver(pid)
    };
    let Shared { mut with, is_cut, hidden } = search(&pieces, inside);
    for (id, client) in scene.executors.into_iter().flat_map(Executors::memory_of_others) {
        if pieces.contains_key(&id) {
            with.entry(id).or_insert(client);
        }
    }
    let root = scene.root().pid;
    if is_cut || hidden > 0 {
        let why = match is_cut {
            true => "there are too many processes here to see whether others share it",
            false => "whether other users' processes share it cannot be seen without root",
        };
        found.push(Finding::new(Severity::Note, root, "process", "GPU memory").why(why));
    }
    let mut strangers: Vec<_> = with.into_iter().collect();
    // One finding a stranger.
    strangers.sort_unstable_by_key(|(id, stranger)| (*stranger, *id));
    strangers.dedup_by_key(|(_, stranger)| *stranger);
    for (id, stranger) in strangers {
        let Some(piece) = pieces.get(&id) else { continue };
        found.push(
            Finding::new(Severity::Refused, piece.pid, piece.place.as_str(), piece.name.as_str())
                .why(format!(
                    "it is GPU memory that process {stranger} ({}) has, too, which is not checkpointed with it",
                    name(stranger)
                ))
                .remedy(match scene.executors {
                    Some(_) => "checkpoint a common parent of both, or end that process".to_owned(),
                    None => format!(
                        "checkpoint both in one session (--session {stranger}) if that one has a Stasis runtime, or end it"
                    ),
                }),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::{Child, Command, Stdio};

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::super::dump_flags::DumpFlags;
    use super::super::privileges::Own;
    use super::super::tree::Runtime;
    use super::*;

    /// A process that has a file, which this one has no more.
    fn keeper(file: impl Into<Stdio>) -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file.into()).spawn().unwrap()
    }

    fn holder(name: &str) -> Child {
        keeper(memfd_create(name, MFdFlags::MFD_CLOEXEC).unwrap())
    }

    fn judged(tree: &[Process], session: &HashSet<i32>) -> Vec<Finding> {
        let own = Own { uid: 0, capabilities: u64::MAX, ptrace_scope: 0, criu: Ok("/criu".into()) };
        let mut found = Vec::new();
        judge(&Scene { tree, flags: &DumpFlags::default(), own: &own, session, executors: None }, &mut found);
        found
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn bystander_with_gpu_memory_is_named_and_one_with_other_memory_is_not() {
        for (memory, expected) in [("softgpu:vram:7", 1), ("softgpu:doorbell", 0), ("other", 0)] {
            let child = holder(memory);
            let process = Process::read(child.id().cast_signed()).unwrap();
            let found = judged(&[process], &HashSet::new());
            end(child);
            assert_eq!(found.len(), expected, "{memory}: {found:?}");
            assert!(found.iter().all(|f| f.place == "fd 2" && f.severity == Severity::Refused), "{found:?}");
        }
    }

    #[test]
    fn stranger_is_named_unless_it_is_in_the_session() {
        let child = holder("softgpu:gtt:7");
        let stranger = child.id().cast_signed();
        let owner = keeper(std::fs::File::open(format!("/proc/{stranger}/fd/2")).unwrap());
        let mut process = Process::read(owner.id().cast_signed()).unwrap();
        process.runtime = Some(Runtime::Silent("made up".into()));
        let tree = [process];
        let alone = judged(&tree, &HashSet::new());
        let together = judged(&tree, &HashSet::from([stranger]));
        end(child);
        end(owner);
        assert_eq!(alone.len(), 1, "{alone:?}");
        assert_eq!((alone[0].pid, alone[0].place.as_str()), (tree[0].pid, "fd 2"));
        assert!(alone[0].why.contains(&format!("process {stranger} (cat)")), "{alone:?}");
        assert!(alone[0].remedy.contains(&format!("--session {stranger}")), "{alone:?}");
        assert_eq!(together, []);
    }
}
