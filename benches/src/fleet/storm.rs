// SPDX-License-Identifier: MIT OR Apache-2.0
//! All nodes are restored at once: after a power failure, or of one image for a service. When is which of them at work?
//!
//! Every node that reads has an equal share of what the sources give, and at most what its own network or its cores take. So all are equal,
//! and the simulation goes from one end of a transfer to the next.

use super::site::{Site, Software};

/// Which nodes read at a time, and from where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Everybody at once, each its own contents.
    AtOnce,
    /// So many at a time, the others wait.
    Waves(usize),
    /// All the same contents, of the store and of every node that has them.
    Peers,
}

impl Policy {
    /// Those that are compared; the first is the one that happens by itself.
    pub fn all(site: &Site) -> [Self; 3] {
        // As many as the store can serve at the full speed of their networks.
        let fit = (site.store / site.link).floor().max(1.0);
        // CAST: at most the number of nodes, which is small.
        [Self::AtOnce, Self::Waves((fit as usize).min(site.nodes)), Self::Peers]
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::AtOnce => "all at once from the store",
            Self::Waves(_) => "as many at a time as the store can serve",
            Self::Peers => "one image for all, from nodes that have it",
        }
    }
}

/// Seconds after which each node is at work, in their order.
pub fn simulate(site: &Site, software: Software, policy: Policy) -> Vec<f64> {
    let most = site.link.min(site.fills(software));
    let places = match policy {
        Policy::Waves(places) => places.max(1),
        Policy::AtOnce | Policy::Peers => site.nodes,
    };
    let (mut now, mut ready) = (site.begin, Vec::with_capacity(site.nodes));
    // Groups of equal nodes: how many, and what each has still to read.
    let mut reading: Vec<(usize, f64)> = Vec::new();
    let mut waiting = site.nodes;
    while ready.len() < site.nodes {
        let busy: usize = reading.iter().map(|(count, _)| count).sum();
        let more = waiting.min(places - busy.min(places));
        if more > 0 {
            reading.push((more, site.bytes()));
            waiting -= more;
        }
        let readers: usize = reading.iter().map(|(count, _)| count).sum();
        let sources = match policy {
            // Those that have it give what their networks do.
            Policy::Peers => site.store + ready.len() as f64 * site.link,
            Policy::AtOnce | Policy::Waves(_) => site.store,
        };
        // A part of the readers at a time, where others could give it on sooner than all could have it.
        if policy == Policy::Peers && sources / readers as f64 <= most / 2.0 && reading.len() == 1 {
            // CAST: fewer than there are readers.
            let first = ((sources / most).floor() as usize).clamp(1, readers);
            now += reading[0].1 / (sources / first as f64).min(most);
            ready.extend(std::iter::repeat_n(now + site.fixed, first));
            reading[0].0 -= first;
            reading.retain(|(count, _)| *count > 0);
            continue;
        }
        let rate = (sources / readers as f64).min(most);
        let least = reading.iter().map(|(_, left)| *left).fold(f64::INFINITY, f64::min);
        now += least / rate;
        for (count, left) in &mut reading {
            *left -= least;
            if *left <= 1e-9 {
                ready.extend(std::iter::repeat_n(now + site.fixed, *count));
                *count = 0;
            }
        }
        reading.retain(|(count, _)| *count > 0);
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::super::site::SITE;
    use super::*;

    const FAST: Software = Software { write: 100.0, fill: 100.0 };

    #[test]
    fn all_at_once_end_when_the_store_has_given_everything() {
        let ready = simulate(&SITE, FAST, Policy::AtOnce);
        let expected = SITE.begin + SITE.fixed + 1000.0 * SITE.bytes() / SITE.store;
        assert_eq!(ready.len(), 1000);
        assert!(ready.iter().all(|at| (at - expected).abs() < 1e-6), "{} {expected}", ready[0]);
    }

    #[test]
    fn in_waves_the_last_is_as_late_and_the_others_are_sooner() {
        let ready = simulate(&SITE, FAST, Policy::Waves(10));
        let at_once = simulate(&SITE, FAST, Policy::AtOnce);
        // Ten readers take 460 of the store's 500 GiB/s.
        assert!(
            ready[999] >= at_once[999] && ready[999] < 1.1 * at_once[999],
            "{} {}",
            ready[999],
            at_once[999]
        );
        assert!(
            ready[499] < 0.6 * at_once[499] && ready[0] < 0.11 * at_once[0],
            "{} {}",
            ready[0],
            ready[499]
        );
        assert!(ready.is_sorted());
    }

    #[test]
    fn peers_double_the_sources_each_time() {
        let ready = simulate(&SITE, FAST, Policy::Peers);
        let one = SITE.bytes() / SITE.link;
        assert_eq!(ready.len(), 1000);
        let turns = (ready[999] - SITE.begin - SITE.fixed) / one;
        // 10 have it after the first turn, and each gives it to another one: 10, 30, 70, 150, 310, 630, 1000.
        assert!((6.0..8.5).contains(&turns), "{turns}");
        assert!(ready.is_sorted());
    }

    #[test]
    fn cores_can_be_the_limit() {
        let slow = Software { write: 0.01, fill: 0.01 };
        let site = Site { nodes: 3, ..SITE };
        let ready = simulate(&site, slow, Policy::AtOnce);
        let expected = site.begin + site.fixed + site.bytes() / (0.01 * 96.0);
        assert!((ready[2] - expected).abs() < 1e-6, "{} {expected}", ready[2]);
    }
}
