// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probes, in the order in which one depends on another.

mod checkpoint;
mod driver;
mod faults;
mod kernels;
mod memory;
mod order;
mod queues;

use super::probe::Probe;

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Probe> {
    let groups: [&'static [Probe]; 7] = [
        &driver::PROBES,
        &memory::PROBES,
        &queues::PROBES,
        &kernels::PROBES,
        &order::PROBES,
        &faults::PROBES,
        &checkpoint::PROBES,
    ];
    groups.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_words_of_the_command_line_and_no_two_are_the_same() {
        let names: Vec<_> = all().map(|probe| probe.name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        let is_word =
            |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c.is_ascii_digit());
        assert!(names.iter().all(|name| is_word(name) && name.len() <= 18), "{names:?}");
    }
}
