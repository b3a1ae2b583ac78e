// SPDX-License-Identifier: MIT OR Apache-2.0
//! One job on all nodes: the share of its time that is not lost to checkpoints, to failures, and to beginning again.
//!
//! A failure of any node ends the job. It goes on from the newest checkpoint that counts: one that was whole, in a place that outlives the
//! node, before the failure.

use super::site::{Site, Software};

/// How checkpoints are taken.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub name: &'static str,
    /// Seconds that the job stands still.
    pub stop: f64,
    /// Seconds after its beginning until the checkpoint counts.
    pub counts_after: f64,
    /// Seconds from a failure until all nodes compute again.
    pub back_after: f64,
}

impl Plan {
    /// The plans that are compared.
    pub fn all(site: &Site, software: Software) -> [Self; 4] {
        let bytes = site.bytes();
        let seconds = |bytes: f64, rate: f64| site.fixed + bytes / rate;
        let (writes, share) = (site.writes(software), site.share());
        // All read at once, from the store; what is there once only is read once more than it is written.
        let back_after = site.begin + seconds(bytes, site.fills(software).min(share));
        let new = bytes * site.unique * site.changed;
        let to_disks = |bytes: f64| seconds(bytes, writes.min(site.disks));
        [
            Self {
                name: "to the store",
                stop: seconds(bytes, writes.min(share)),
                counts_after: 0.0,
                back_after,
            }
            .counting(),
            Self {
                name: "to the store, new chunks only",
                // All of it is hashed, and what nobody has is sent.
                stop: seconds(bytes, writes).max(seconds(new, share)),
                counts_after: 0.0,
                back_after,
            }
            .counting(),
            Self {
                name: "to own disks, new chunks then to the store",
                stop: to_disks(bytes * site.changed).max(seconds(bytes, writes)),
                counts_after: to_disks(bytes * site.changed) + new / share,
                back_after,
            },
            Self {
                name: "copied before, the last changes to own disks",
                stop: to_disks(bytes * site.changed / 10.0),
                counts_after: to_disks(bytes * site.changed) + new / share,
                back_after,
            },
        ]
    }

    /// One that counts when the job goes on.
    fn counting(self) -> Self {
        Self { counts_after: self.stop, ..self }
    }
}

/// Numbers that are the same everywhere (splitmix64), as shares of one.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Seconds until the next failure of `nodes` nodes.
    fn failure(&mut self, site: &Site) -> f64 {
        -(1.0 - self.next()).ln() * site.mtbf * 3600.0 / site.nodes as f64
    }
}

/// The share of `total` seconds that the job computes for good, with a checkpoint after each `interval` seconds of work.
pub fn simulate(site: &Site, plan: &Plan, interval: f64, total: f64, seed: u64) -> f64 {
    let mut numbers = Numbers(seed);
    let (mut now, mut kept) = (0.0, 0.0);
    while now < total {
        // From one failure to the next: work, checkpoints, and which of them count by then.
        let life = numbers.failure(site);
        let cycle = interval + plan.stop;
        // The n-th checkpoint begins after n intervals and n - 1 stops, and counts later; the next waits until it does.
        let cycle = cycle.max(plan.counts_after + interval.min(plan.stop));
        let counting = ((life - interval - plan.counts_after) / cycle + 1.0).floor().max(0.0);
        kept += counting * interval;
        now += life + plan.back_after;
    }
    kept / now
}

#[cfg(test)]
mod tests {
    use super::super::site::SITE;
    use super::*;

    const PLAN: Plan = Plan { name: "tested", stop: 30.0, counts_after: 30.0, back_after: 200.0 };

    #[test]
    fn without_failures_only_the_stops_are_lost() {
        let site = Site { mtbf: 1e12, ..SITE };
        let share = simulate(&site, &PLAN, 570.0, 3600.0, 1);
        assert!((share - 0.95).abs() < 1e-3, "{share}");
    }

    #[test]
    fn best_interval_is_about_that_of_youngs_formula() {
        let share = |minutes: f64| simulate(&SITE, &PLAN, minutes * 60.0, 3600.0 * 100_000.0, 1);
        let best = (1..=120).map(f64::from).max_by(|a, b| share(*a).total_cmp(&share(*b))).unwrap();
        // The square root of twice the stop times the time between failures of the job, 10 h.
        let young = (2.0 * PLAN.stop * 36_000.0_f64).sqrt() / 60.0;
        assert!((best / young - 1.0).abs() < 0.3, "{best} {young}");
    }

    #[test]
    fn faster_plans_are_better_and_the_same_seed_gives_the_same() {
        let software = Software { write: 1.0, fill: 1.0 };
        let shares = Plan::all(&SITE, software).map(|plan| simulate(&SITE, &plan, 1200.0, 3.6e6, 7));
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)), "{shares:?}");
        assert!(shares[3] > shares[0] && shares[1] > shares[0], "{shares:?}");
        assert_eq!(shares, Plan::all(&SITE, software).map(|plan| simulate(&SITE, &plan, 1200.0, 3.6e6, 7)));
    }
}
