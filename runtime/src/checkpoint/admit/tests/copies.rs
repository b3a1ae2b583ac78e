// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the agents of a restored copy go: on their own, and as a map says.

use kfd::GpuId;

use super::*;
use crate::checkpoint::keeper::Kept;
use crate::checkpoint::snapshot::Contents;
use crate::linux::incarnation::Incarnation;

/// Agents of a process that ran on the GPUs `list` of a machine with `gpus`, about to be restored on another.
pub(super) struct Copy {
    pub(super) context: Arc<Context>,
    pub(super) snapshot: Mutex<Snapshot>,
    pub(super) here: Arc<TestTransport>,
}

impl Copy {
    pub(super) fn of(gpus: u32, list: Option<&str>, here: u32) -> Self {
        Self::with(gpus, list, here, |_| {})
    }

    /// The same, where the machine of the checkpoint was prepared.
    pub(super) fn with(gpus: u32, list: Option<&str>, here: u32, prepare: impl Fn(&TestTransport)) -> Self {
        let there = TestTransport::new(gpus);
        prepare(&there);
        let context = crate::context::open::open(Arc::clone(&there) as _, list).unwrap();
        let pass = context.gate.enter().unwrap();
        let agents = identities(&context, context.device(&pass).map(AsRef::as_ref));
        drop(pass);
        let here = TestTransport::new(here);
        let snapshot = Snapshot {
            contents: Contents::File("/nowhere".into()),
            image_id: String::new(),
            directory: "/nowhere".into(),
            incarnation: Incarnation::current().unwrap(),
            kept: Kept::Nowhere,
            transport: Arc::clone(&here) as _,
            agents,
            secret: crate::checkpoint::TermsSecret::draw().unwrap(),
            copy_of: None,
            terms: None,
            sharing: Default::default(),
            captured: None,
        };
        Self { context, snapshot: Mutex::new(snapshot), here }
    }

    fn admit(&self, checks: Checks, map: &[&str]) -> Result<Vec<u32>, CheckpointError> {
        let places = map.iter().map(|text| text.parse().unwrap()).collect();
        self.admit_on(&Admission { checks, places, ..Admission::default() })
    }

    pub(super) fn admit_on(&self, terms: &Admission) -> Result<Vec<u32>, CheckpointError> {
        admit(&self.context, &mut self.snapshot.lock(), Some(terms), false, &Limit::none())?;
        for agent in &self.context.agents {
            assert_eq!(agent.render_minor(), 128 + self.place(agent.gpu()));
            assert_eq!(agent.placement().gpu, agent.gpu());
        }
        Ok(self.context.agents.iter().map(|agent| self.place(agent.gpu())).collect())
    }

    /// The position of a GPU here.
    fn place(&self, gpu: GpuId) -> u32 {
        (0..).find(|n| self.here.sysfs.gpu_id(n + 1) == gpu.0).unwrap()
    }

    /// Where the agents are put by default.
    fn places(&self) -> Vec<u32> {
        self.admit(Checks::default(), &[]).unwrap()
    }

    /// Gives the GPUs here other serial numbers.
    fn renumber(&self, ids: &[u64]) {
        for (n, id) in ids.iter().enumerate() {
            self.here.sysfs.change(&format!("nodes/{}/properties", n + 1), "unique_id", *id);
        }
    }

    fn refused(&self, map: &[&str]) -> String {
        let before: Vec<GpuId> = self.context.agents.iter().map(|agent| agent.gpu()).collect();
        let refusal = self.admit(Checks::default(), map).unwrap_err();
        let after: Vec<GpuId> = self.context.agents.iter().map(|agent| agent.gpu()).collect();
        assert_eq!(before, after, "a refusal moved an agent");
        match &refusal {
            CheckpointError::Agents { .. } => refusal.to_string(),
            CheckpointError::Place(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

const A: u64 = 0xa1b2_0000_0000_0001;
const B: u64 = 0xa1b2_0000_0000_0002;

#[test]
fn same_gpu_is_found_wherever_it_is_now() {
    let copy = Copy::of(2, None, 3);
    assert_eq!(copy.places(), [0, 1]);
    copy.renumber(&[7, B, A]);
    assert_eq!(copy.places(), [2, 1]);
}

#[test]
fn position_counts_where_the_gpu_is_another() {
    let copy = Copy::of(2, None, 3);
    copy.renumber(&[7, 8, 9]);
    assert_eq!(copy.places(), [0, 1]);
    // The second of two: its position is that among all GPUs.
    let second = Copy::of(2, Some("1"), 2);
    second.renumber(&[7, 8]);
    assert_eq!(second.places(), [1]);
    // Serial numbers of 0 name nothing.
    let nameless = Copy::with(2, Some("1"), 2, |there| {
        for node in 1..=2 {
            there.sysfs.change(&format!("nodes/{node}/properties"), "unique_id", 0);
        }
    });
    nameless.renumber(&[0, 0]);
    assert_eq!(nameless.places(), [1]);
}

#[test]
fn agent_that_finds_its_gpu_goes_before_one_that_finds_its_position() {
    // Agent 0's GPU is gone, and agent 1's is in its position.
    let copy = Copy::of(2, None, 2);
    copy.renumber(&[B, 9]);
    assert_eq!(copy.places(), [1, 0]);
}

#[test]
fn own_gpu_is_left_where_the_rules_can_only_be_kept_elsewhere() {
    let copy = Copy::of(2, None, 3);
    // Between the first two there is nothing any more; the third has both.
    copy.here.sysfs.remove("nodes/1/p2p_links/2");
    copy.here.sysfs.remove("nodes/2/p2p_links/1");
    assert_eq!(copy.places(), [0, 2]);
    // And where the same GPU has become too small.
    copy.here.sysfs.change("nodes/1/mem_banks/0/properties", "size_in_bytes", 4096);
    assert_eq!(copy.places(), [2, 1]);
}

#[test]
fn refusal_means_that_there_is_no_way_and_says_why() {
    let copy = Copy::of(2, None, 3);
    for node in 1..=3 {
        for other in 1..=3 {
            copy.here.sysfs.remove(&format!("nodes/{node}/p2p_links/{other}"));
        }
    }
    let text = copy.refused(&[]);
    assert!(text.contains("had agent_link PCIe to agent "), "{text}");
    assert!(text.contains("has none; it must be at least what it was"), "{text}");
}

#[test]
fn agents_that_need_the_same_gpu_learn_what_the_next_one_lacks() {
    let copy = Copy::of(2, None, 2);
    copy.here.sysfs.change("nodes/2/properties", "fw_version", 2139);
    let text = copy.refused(&[]);
    assert!(text.contains("had fw_version 2140") && text.contains("KFD_FW_VER_CHECK=0"), "{text}");
    assert_eq!(copy.admit(Checks::without(Switch::FwVersion), &[]).unwrap(), [0, 1]);
}

#[test]
fn fewer_gpus_than_agents_are_counted() {
    let text = Copy::of(3, None, 2).refused(&[]);
    assert!(text.contains("had gpus 3, here it is 2; it must be at least"), "{text}");
    // Of those that it does not use, none need be here.
    assert_eq!(Copy::of(3, Some("0,2"), 2).places().len(), 2);
}

#[test]
fn map_places_agents_and_the_others_find_theirs() {
    let copy = Copy::of(2, None, 3);
    assert_eq!(copy.admit(Checks::default(), &["0=1", "1=0"]).unwrap(), [1, 0]);
    assert_eq!(copy.admit(Checks::default(), &["0=2"]).unwrap(), [2, 1]);
    // Agent 1's own GPU is given away: it takes another.
    assert_eq!(copy.admit(Checks::default(), &["0=1"]).unwrap()[0], 1);
    let by_uuid = ["GPU-a1b2000000000002=GPU-a1b2000000000003"];
    assert_eq!(copy.admit(Checks::default(), &by_uuid).unwrap(), [0, 2]);
}

#[test]
fn map_that_does_not_fit_is_refused_by_name_and_by_rule() {
    let copy = Copy::of(2, None, 3);
    assert!(copy.refused(&["5=0"]).contains("no agent of the process"));
    assert!(copy.refused(&["0=5"]).contains("not here"));
    assert!(copy.refused(&["0=1", "0=2"]).contains("placed already"));
    assert!(copy.refused(&["0=1", "1=1"]).contains("given already"));
    copy.here.sysfs.change("nodes/3/properties", "simd_count", 96);
    let text = copy.refused(&["0=2"]);
    let expected = "agent 0 (GPU-a1b2000000000001) had simd_count 192, GPU-a1b2000000000003 here has 96; the two must be equal";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn nobody_moves_in_a_process_that_lives_on() {
    let copy = Copy::of(2, Some("0"), 2);
    let terms = Admission { places: vec!["0=1".parse().unwrap()], ..Admission::default() };
    let refusal =
        admit(&copy.context, &mut copy.snapshot.lock(), Some(&terms), true, &Limit::none()).unwrap_err();
    let CheckpointError::Agents { differences } = refusal else { panic!("{refusal:?}") };
    assert_eq!(differences.iter().map(|d| d.property).collect::<Vec<_>>(), ["gpu_id"]);
}

#[test]
fn moved_process_remembers_where_it_is_now() {
    let copy = Copy::of(2, Some("0"), 2);
    copy.here.sysfs.change("nodes/2/properties", "fw_version", 2200);
    assert_eq!(copy.admit(Checks::default(), &["0=1"]).unwrap(), [1]);
    let now = identities(&copy.context, None);
    assert_eq!((now[0].unique_id, now[0].ordinal), (B, Some(1)));
    assert_eq!(now[0].properties["fw_version"], 2200);
    // What the process itself sees of its agent stays.
    assert_eq!(copy.context.agents[0].uuid(), "GPU-a1b2000000000001");
}

#[test]
fn old_image_is_compared_in_what_it_knows() {
    let copy = Copy::of(2, None, 2);
    let mut old = serde_json::to_value(&copy.snapshot.lock().agents).unwrap();
    for agent in old.as_array_mut().unwrap() {
        let agent = agent.as_object_mut().unwrap();
        for new in ["gpu_id", "ordinal", "links"] {
            agent.remove(new).unwrap();
        }
        let properties = agent["properties"].as_object_mut().unwrap();
        for new in
            ["kfd_ioctl_major", "kfd_ioctl_minor", "num_xcc", "vram_public", "sdma_fw_version", "cwsr_size"]
        {
            properties.remove(new).unwrap();
        }
    }
    let agents: Vec<AgentIdentity> = serde_json::from_value(old).unwrap();
    copy.snapshot.lock().agents = agents;
    copy.here.kernel.set_version(Some((1, 15)));
    copy.here.sysfs.remove("nodes/1/p2p_links/2");
    copy.here.sysfs.change("nodes/1/properties", "num_xcc", 2);
    assert_eq!(copy.places(), [0, 1]);
    copy.here.sysfs.change("nodes/1/properties", "fw_version", 1);
    copy.here.sysfs.change("nodes/2/properties", "fw_version", 1);
    assert!(copy.refused(&[]).contains("fw_version"));
}

#[test]
fn copy_that_was_refused_does_not_go_on_under_other_terms_by_itself() {
    let copy = Copy::of(2, Some("0"), 2);
    copy.refused(&["0=5"]);
    let by_itself = || admit(&copy.context, &mut copy.snapshot.lock(), None, false, &Limit::none());
    assert!(matches!(by_itself(), Err(CheckpointError::Place(PlaceError::UnknownNew { .. }))));
    assert_eq!(copy.admit(Checks::default(), &["0=1"]).unwrap(), [1]);
    // Nobody's terms leave a process that lives on behind.
    copy.refused(&["0=5"]);
    copy.snapshot.lock().terms = None;
    let terms = Admission { places: vec!["0=5".parse().unwrap()], ..Admission::default() };
    let given = |terms| admit(&copy.context, &mut copy.snapshot.lock(), terms, true, &Limit::none());
    given(Some(&terms)).unwrap_err();
    given(None).unwrap();
}
