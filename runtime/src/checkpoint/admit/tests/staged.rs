// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths between agents that are not here: when copies through the host's memory may stand in for them, and when not.

use super::copies::Copy;
use super::*;
use crate::context::registry::state::{AgentIndex, DmabufId, Origin, Sharing};
use crate::pool::{Buffer, Pool};

fn staged() -> Admission {
    Admission { allow_staged: true, ..Admission::default() }
}

/// A buffer in the first agent's memory that the second maps.
fn mapped_to_the_second(copy: &Copy) -> Buffer {
    let runtime = Runtime::from_context(&copy.context);
    let buffer = Pool::new(&copy.context, crate::pool::PoolKind::Vram, AgentIndex(0)).alloc(4096).unwrap();
    buffer.allow(&runtime.agent(1).unwrap()).unwrap();
    buffer
}

/// Takes the path from one GPU here to another away.
fn cut(copy: &Copy, from: u32, to: u32) {
    copy.here.sysfs.remove(&format!("nodes/{}/p2p_links/{}", from + 1, to + 1));
}

fn names(copy: &Copy, terms: &Admission) -> Vec<(&'static str, String)> {
    match copy.admit_on(terms).unwrap_err() {
        CheckpointError::Agents { differences } => {
            differences.iter().map(|difference| (difference.property, difference.to_string())).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_path_is_named_in_its_direction_and_borne_if_asked() {
    for (from, to) in [(0, 1), (1, 0)] {
        let copy = Copy::of(2, None, 2);
        cut(&copy, from, to);
        let found = names(&copy, &Admission::default());
        let [("agent_link", text)] = &found[..] else { panic!("{found:?}") };
        let name =
            format!("agent {from} (GPU-a1b200000000000{}) had agent_link PCIe to agent {to}", from + 1);
        assert!(text.starts_with(&name) && text.contains("here it has none"), "{text}");
        assert!(text.ends_with(": give --allow-staged to copy through the host instead"), "{text}");
        assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
        // What it is compared with from now on is the machine it is on.
        assert!(
            !identities(&copy.context, None)[from as usize].links.as_ref().unwrap().agents.contains_key(&to)
        );
    }
}

#[test]
fn lesser_path_and_other_counts_of_links_are_borne_too() {
    let copy = Copy::with(2, None, 2, |there| {
        there.sysfs.remove("nodes/1/p2p_links/2");
        there.sysfs.link(1, "io_links", 2, 11);
        there.sysfs.change("nodes/1/properties", "io_links_count", 2);
    });
    let found = names(&copy, &Admission::default());
    // The first agent's count is in the way of each place by itself, so paths are not looked at yet.
    assert!(matches!(&found[..], [("io_links_count", text)] if text.contains("--allow-staged")), "{found:?}");
    assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
}

#[test]
fn path_is_given_up_only_where_none_can_be_kept() {
    let copy = Copy::of(2, None, 3);
    cut(&copy, 0, 1);
    cut(&copy, 1, 0);
    assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 2], "the third GPU has all paths");
}

#[test]
fn nothing_else_is_borne() {
    let copy = Copy::of(2, None, 2);
    cut(&copy, 0, 1);
    copy.here.sysfs.change("nodes/2/properties", "simd_count", 96);
    let found = names(&copy, &staged());
    assert!(matches!(&found[..], [("simd_count", _)]), "{found:?}");
    let gone = Copy::of(2, None, 2);
    gone.here.sysfs.remove("nodes/1/io_links/0");
    assert!(matches!(&names(&gone, &staged())[..], [("cpu_link", _)]));
}

#[test]
fn buffer_that_a_peer_maps_is_named_and_refused_even_so() {
    let copy = Copy::of(2, None, 2);
    let buffer = mapped_to_the_second(&copy);
    let text = format!(
        "buffer {} of agent 0 is mapped to agent 1, which had peer_mapping over PCIe, here it has none; \
         kernels may access it, so copies through the host cannot stand in",
        buffer.key()
    );
    // The second agent's path to the first is what it takes; the other direction may go.
    cut(&copy, 0, 1);
    assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
    cut(&copy, 1, 0);
    assert_eq!(names(&copy, &staged()), [("peer_mapping", text.clone())]);
    let all: Vec<_> = names(&copy, &Admission::default()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(all.iter().filter(|name| **name == "agent_link").count(), 2, "{all:?}");
    assert_eq!(all.iter().filter(|name| **name == "peer_mapping").count(), 1, "{all:?}");
    // Several are counted.
    let more = [mapped_to_the_second(&copy), mapped_to_the_second(&copy)];
    let (_, counted) = &names(&copy, &staged())[0];
    assert!(counted.contains(" and 2 more of agent 0 are mapped to agent 1"), "{counted}");
    drop(more);
    // And with a path of any kind it comes.
    copy.here.sysfs.link(2, "io_links", 1, 11);
    assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
    drop(buffer);
}

#[test]
fn memory_of_the_host_and_an_agents_own_need_no_path() {
    let copy = Copy::of(2, None, 2);
    let runtime = Runtime::from_context(&copy.context);
    let buffers = [
        runtime.gtt().alloc(4096).unwrap(),
        runtime.agent(0).unwrap().vram().alloc(4096).unwrap(),
        runtime.agent(1).unwrap().vram().alloc(4096).unwrap(),
    ];
    cut(&copy, 0, 1);
    cut(&copy, 1, 0);
    assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
    drop(buffers);
}

#[test]
fn memory_imported_from_another_agent_needs_its_path() {
    let copy = Copy::of(2, None, 2);
    let buffer = Runtime::from_context(&copy.context).agent(1).unwrap().vram().alloc(4096).unwrap();
    let import = |home| {
        let mut registry = copy.context.registry.lock();
        let state = &mut registry.bos.get_mut(buffer.key()).unwrap().state;
        state.kind = crate::context::registry::state::BoKind::Imported;
        let dmabuf = DmabufId { device: 1, inode: 2 };
        state.sharing = Some(Sharing { dmabuf, origin: Origin::Imported, home });
    };
    cut(&copy, 0, 1);
    cut(&copy, 1, 0);
    import(Some(AgentIndex(0)));
    let found = names(&copy, &staged());
    assert!(
        matches!(&found[..], [("peer_mapping", text)] if text.contains("of agent 0 is mapped to agent 1"))
    );
    // Its own, come back to it; and another process's, whose agent is none of this one's.
    for home in [Some(AgentIndex(1)), None] {
        import(home);
        assert_eq!(copy.admit_on(&staged()).unwrap(), [0, 1]);
    }
    let mut registry = copy.context.registry.lock();
    let state = &mut registry.bos.get_mut(buffer.key()).unwrap().state;
    (state.kind, state.sharing) = (crate::context::registry::state::BoKind::Vram, None);
}

#[test]
fn process_that_lives_on_keeps_its_device() {
    let copy = Copy::of(1, None, 1);
    let on = |device: &str| Admission { device: Some(device.to_owned()), ..Admission::default() };
    let refused = |device: &str, same: bool| {
        let outcome =
            admit(&copy.context, &mut copy.snapshot.lock(), Some(&on(device)), same, &Limit::none());
        match outcome.unwrap_err() {
            CheckpointError::Elsewhere(error) => error,
            other => panic!("{other:?}"),
        }
    };
    let known = refused("soft:gfx1100*2", true);
    let had = copy.here.name().to_owned();
    assert_eq!(known, ElsewhereError::Known { had: had.clone(), wanted: "soft:gfx1100,gfx1100".to_owned() });
    assert!(known.to_string().contains(&format!("known to {had} with its address spaces")), "{known}");
    assert!(
        matches!(refused("soft:gfx11oo", true), ElsewhereError::Spec { text, .. } if text == "soft:gfx11oo")
    );
    assert!(matches!(refused("hip", false), ElsewhereError::Spec { .. }));
}

#[test]
fn device_of_a_command_line_is_made_absolute() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("machine.toml");
    std::fs::write(&file, "").unwrap();
    let dotted = format!("soft:{}/./machine.toml", directory.path().display());
    let terms = Admission::default().on_device(Some(&dotted)).unwrap();
    assert_eq!(terms.device, Some(format!("soft:{}", file.display())));
    let terms = Admission::default().on_device(Some("soft:gfx1100*2")).unwrap();
    assert_eq!(terms.device.as_deref(), Some("soft:gfx1100,gfx1100"));
    let error = Admission::default().on_device(Some("soft:gfx1100,")).unwrap_err();
    assert!(error.to_string().contains("\"soft:gfx1100,\""), "{error}");
}
