// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pids a job's program gets. A restore needs the same on another node, where others may have low ones.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The pid that the kernel gave last (`kernel.ns_last_pid` of proc_sys_kernel(5)); writing needs CAP_CHECKPOINT_RESTORE.
const LAST: &str = "/proc/sys/kernel/ns_last_pid";
/// The highest pid and one (`kernel.pid_max`).
const LIMIT: &str = "/proc/sys/kernel/pid_max";

/// Has the kernel give pids from a place of the job's own on, in the middle half of all there are. Where this is not allowed the
/// program gets the next ones, and a restore where they are taken is refused by name.
pub fn place(job: &str) {
    let limit = fs::read_to_string(LIMIT).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(last) = limit.and_then(|limit| of_job(job, limit)) {
        // Not allowed to all.
        let _ = fs::write(LAST, last.to_string());
    }
}

/// A place for a job among pids below `limit`, at a distance of 64 from those of most others.
fn of_job(job: &str, limit: u64) -> Option<u64> {
    const STEP: u64 = 64;
    let mut hasher = DefaultHasher::new();
    job.hash(&mut hasher);
    let places = limit / 2 / STEP;
    Some(limit / 4 + hasher.finish().checked_rem(places)? * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_places_of_their_own_in_the_middle() {
        for limit in [32_768, 4_194_304] {
            let places: Vec<u64> = (0..8).map(|job| of_job(&job.to_string(), limit).unwrap()).collect();
            assert!(places.iter().all(|place| (limit / 4..limit * 3 / 4).contains(place)), "{places:?}");
            assert_eq!(of_job("3", limit), Some(places[3]));
        }
        assert_eq!(of_job("1", 100), None);
    }
}
