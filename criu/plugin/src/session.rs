// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: processes that close their devices together, and rebuild their shared memory together.
//!
//! INVARIANT: the processes of a session belong to one user, for only that user can enter the directory of the
//! rendezvous, which is beside the directories of contents. No process is in two sessions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stasis::share::{Member, SessionOrder};

use crate::images::{Images, Place, PlaceError, name_of};
use crate::process::Process;

/// Name of the directory of the rendezvous.
const MEETING: &str = "stasis-session";

/// A session that is about to begin.
#[derive(Debug)]
pub(crate) struct SessionPlan {
    /// The directory of its rendezvous.
    pub place: Place,
    id: String,
    members: Vec<Process>,
    patience: Duration,
}

/// The sessions of processes that are ordered to close their devices: one for each user. A single process needs none.
pub(crate) fn plan(
    processes: &[&Process],
    images: &Images,
    patience: Duration,
) -> Result<Vec<SessionPlan>, PlaceError> {
    let mut users = BTreeMap::<u32, Vec<&Process>>::new();
    for process in processes {
        users.entry(process.uid).or_default().push(process);
    }
    let one = users.len() == 1;
    let plan = |(uid, members): (u32, Vec<&Process>)| {
        let name = if one { MEETING.to_owned() } else { format!("{MEETING}-{uid}") };
        let members: Vec<Process> = members.into_iter().cloned().collect();
        let place = images.make_meeting(name, members.first().ok_or(PlaceError::NoImages)?)?;
        Ok(SessionPlan { place, id: id()?, members, patience })
    };
    users.into_iter().filter(|(_, members)| members.len() > 1).map(plan).collect()
}

/// A name that no other session has.
fn id() -> Result<String, PlaceError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let drawn = fs::read_to_string(path);
    drawn.map(|id| id.trim().to_owned()).map_err(|source| PlaceError::Session { source })
}

impl SessionPlan {
    /// What the order says of the session, for a process that is a member.
    pub fn order(&self, process: &Process) -> Option<SessionOrder> {
        let member =
            |member: &Process| Member { name: name_of(member), image: Path::new("..").join(name_of(member)) };
        let directory = self.place.path.file_name().map_or_else(PathBuf::new, PathBuf::from);
        self.members.contains(process).then(|| SessionOrder {
            id: self.id.clone(),
            directory: self.place.path.clone(),
            from_image: Path::new("..").join(directory),
            name: name_of(process),
            members: self.members.iter().map(member).collect(),
            patience_ms: u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::tests::images;

    #[test]
    fn processes_of_one_user_meet_and_the_others_by_themselves() {
        let temporary = tempfile::tempdir().unwrap();
        let (images, own) = images(temporary.path());
        let of = |pid: i32| Process { own_pid: pid, ..own.clone() };
        let (a, b, alone) = (of(1), of(2), Process { uid: own.uid + 1, ..of(3) });
        assert_eq!(plan(&[&a], &images, Duration::ZERO).unwrap().len(), 0);
        let sessions = plan(&[&a, &b], &images, Duration::from_millis(7)).unwrap();
        assert_eq!(sessions.len(), 1);
        let order = sessions[0].order(&a).unwrap();
        assert_eq!((order.name.as_str(), order.patience_ms), ("stasis-1", 7));
        assert_eq!(order.from_image, Path::new("../stasis-session"));
        let seen: Vec<_> = order.members.iter().map(|member| member.image.clone()).collect();
        assert_eq!(seen, [Path::new("../stasis-1"), Path::new("../stasis-2")]);
        assert_eq!(sessions[0].order(&alone), None);
        let sessions = plan(&[&a, &alone, &b], &images, Duration::ZERO).unwrap();
        assert_eq!(sessions.len(), 1);
        let expected = images.path.join(format!("stasis-session-{}", own.uid));
        assert_eq!(sessions[0].order(&b).unwrap().directory, expected);
    }
}
