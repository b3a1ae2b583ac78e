// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives every agent a GPU of its own such that all rules hold, or finds that it cannot be done.
//!
//! INVARIANT: [`Outcome::Impossible`] means that no assignment exists. Branches are cut only where a rule is broken
//! already, or where a twin of the GPU has failed in the same place: one that could change places with it without any
//! rule noticing.

/// What is to be assigned.
pub(super) struct Problem<'a> {
    /// For each agent the GPUs that would do for it alone, the preferred first.
    pub candidates: &'a [Vec<usize>],
    /// How many GPUs there are.
    pub gpus: usize,
    /// Whether one agent may be on one GPU while another is on another. Symmetric in the two pairs.
    pub fit: &'a dyn Fn((usize, usize), (usize, usize)) -> bool,
    /// Whether two GPUs look the same from every third, and from each other.
    pub alike: &'a dyn Fn(usize, usize) -> bool,
    /// In which order agents choose.
    pub order: &'a [usize],
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The GPU of each agent.
    Found(Vec<usize>),
    /// There is no way.
    Impossible {
        /// Agents and GPUs of the longest attempt, in the order of choice.
        furthest: Vec<(usize, usize)>,
    },
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    /// The first GPU that each is like.
    class: Vec<usize>,
    placed: Vec<(usize, usize)>,
    furthest: Vec<(usize, usize)>,
    steps: u64,
}

/// Steps between two looks at `interrupted`.
const LOOK: u64 = 1 << 10;

/// Searches. `interrupted` is asked now and then, and its error ends the search.
pub(super) fn assign<E>(
    problem: &Problem<'_>,
    mut interrupted: impl FnMut() -> Result<(), E>,
) -> Result<Outcome, E> {
    let mut search =
        Search { problem, class: classes(problem), placed: Vec::new(), furthest: Vec::new(), steps: 0 };
    if !search.place(&mut interrupted)? {
        return Ok(Outcome::Impossible { furthest: search.furthest });
    }
    let mut gpus = vec![0; problem.candidates.len()];
    for (agent, gpu) in search.placed {
        gpus[agent] = gpu;
    }
    Ok(Outcome::Found(gpus))
}

fn classes(problem: &Problem<'_>) -> Vec<usize> {
    let wanted_alike =
        |a: usize, b: usize| problem.candidates.iter().all(|gpus| gpus.contains(&a) == gpus.contains(&b));
    let like = |gpu: usize| {
        (0..gpu).find(|&before| wanted_alike(before, gpu) && (problem.alike)(before, gpu)).unwrap_or(gpu)
    };
    (0..problem.gpus).map(like).collect()
}

impl Search<'_> {
    fn place<E>(&mut self, interrupted: &mut dyn FnMut() -> Result<(), E>) -> Result<bool, E> {
        if self.placed.len() > self.furthest.len() {
            self.furthest.clone_from(&self.placed);
        }
        let Some(&agent) = self.problem.order.get(self.placed.len()) else { return Ok(true) };
        let mut failed: Vec<usize> = Vec::new();
        for &gpu in &self.problem.candidates[agent] {
            self.steps += 1;
            if self.steps.is_multiple_of(LOOK) {
                interrupted()?;
            }
            let taken = self.placed.iter().any(|&(_, other)| other == gpu);
            if taken || failed.contains(&self.class[gpu]) {
                continue;
            }
            if self.placed.iter().all(|&other| (self.problem.fit)((agent, gpu), other)) {
                self.placed.push((agent, gpu));
                if self.place(interrupted)? {
                    return Ok(true);
                }
                self.placed.pop();
            }
            failed.push(self.class[gpu]);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Agents with a kind of link to each other and a CPU node, and GPUs likewise.
    #[derive(Clone, Debug)]
    struct Case {
        fits: Vec<Vec<bool>>,
        had_links: Vec<Vec<u8>>,
        links: Vec<Vec<u8>>,
        had_cpu: Vec<u8>,
        cpu: Vec<u8>,
    }

    impl Case {
        fn fit(&self, (a, gpu_a): (usize, usize), (b, gpu_b): (usize, usize)) -> bool {
            self.had_links[a][b] <= self.links[gpu_a][gpu_b]
                && self.had_links[b][a] <= self.links[gpu_b][gpu_a]
                && (self.had_cpu[a] != self.had_cpu[b] || self.cpu[gpu_a] == self.cpu[gpu_b])
        }

        fn alike(&self, a: usize, b: usize) -> bool {
            let others = (0..self.cpu.len()).filter(|&other| other != a && other != b);
            let same =
                |c: usize| self.links[a][c] == self.links[b][c] && self.links[c][a] == self.links[c][b];
            self.cpu[a] == self.cpu[b] && self.links[a][b] == self.links[b][a] && others.into_iter().all(same)
        }

        fn is_right(&self, gpus: &[usize]) -> bool {
            let agents = 0..gpus.len();
            agents.clone().all(|a| self.fits[a][gpus[a]])
                && agents.clone().all(|a| {
                    agents
                        .clone()
                        .filter(|&b| b != a)
                        .all(|b| gpus[a] != gpus[b] && self.fit((a, gpus[a]), (b, gpus[b])))
                })
        }

        /// Every way to put agents on GPUs, right or wrong, until one is right.
        fn by_force(&self) -> bool {
            let (agents, gpus) = (self.had_cpu.len(), self.cpu.len());
            let ways = gpus.pow(u32::try_from(agents).unwrap());
            let way =
                |n: usize| -> Vec<usize> { (0..agents).map(|a| n / gpus.pow(a as u32) % gpus).collect() };
            (0..ways).any(|n| self.is_right(&way(n)))
        }

        fn search(&self, order: &[usize]) -> Outcome {
            let candidates: Vec<Vec<usize>> =
                (self.fits.iter()).map(|row| (0..self.cpu.len()).filter(|&gpu| row[gpu]).collect()).collect();
            let problem = Problem {
                candidates: &candidates,
                gpus: self.cpu.len(),
                fit: &|a, b| self.fit(a, b),
                alike: &|a, b| self.alike(a, b),
                order,
            };
            assign(&problem, || Ok::<(), Infallible>(())).unwrap()
        }
    }

    fn matrix<T: std::fmt::Debug>(
        rows: usize,
        columns: usize,
        cell: impl Strategy<Value = T> + Clone,
    ) -> impl Strategy<Value = Vec<Vec<T>>> {
        prop::collection::vec(prop::collection::vec(cell, columns), rows)
    }

    fn cases() -> impl Strategy<Value = (Case, Vec<usize>)> {
        (1usize..=5, 1usize..=6).prop_flat_map(|(agents, gpus)| {
            let fits = matrix(agents, gpus, prop::bool::weighted(0.75));
            let had_links = matrix(agents, agents, prop_oneof![4 => Just(0u8), 2 => Just(1), 1 => Just(2)]);
            let links = matrix(gpus, gpus, prop_oneof![1 => Just(0u8), 2 => Just(1), 3 => Just(2)]);
            let cpu = |n| prop::collection::vec(0u8..2, n);
            let order = Just((0..agents).collect::<Vec<_>>()).prop_shuffle();
            (fits, had_links, links, cpu(agents), cpu(gpus), order).prop_map(
                |(fits, had_links, links, had_cpu, cpu, order)| {
                    (Case { fits, had_links, links, had_cpu, cpu }, order)
                },
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn search_finds_what_brute_force_finds((case, order) in cases()) {
            match case.search(&order) {
                Outcome::Found(gpus) => prop_assert!(case.is_right(&gpus), "{gpus:?}"),
                Outcome::Impossible { .. } => prop_assert!(!case.by_force(), "an assignment was overlooked"),
            }
        }
    }

    #[test]
    fn twins_keep_a_hopeless_search_short() {
        // 64 partitions of one CPU node, 32 of each of two nodes here: 32! ways to fail without the twins.
        let n = 64;
        let case = Case {
            fits: vec![vec![true; n]; n],
            had_links: vec![vec![0; n]; n],
            links: vec![vec![0; n]; n],
            had_cpu: vec![0; n],
            cpu: (0..n).map(|gpu| (gpu % 2) as u8).collect(),
        };
        let order: Vec<usize> = (0..n).collect();
        let Outcome::Impossible { furthest } = case.search(&order) else { panic!("there is no way") };
        assert_eq!(furthest.len(), 32);
    }

    #[test]
    fn preference_is_kept_where_it_can_be() {
        let candidates = vec![vec![2, 0, 1], vec![2, 1, 0]];
        let gpus = |order: &[usize]| {
            let problem =
                Problem { candidates: &candidates, gpus: 3, fit: &|_, _| true, alike: &|_, _| true, order };
            assign(&problem, || Ok::<(), Infallible>(()))
        };
        assert_eq!(gpus(&[0, 1]), Ok(Outcome::Found(vec![2, 1])));
        assert_eq!(gpus(&[1, 0]), Ok(Outcome::Found(vec![0, 2])));
    }

    #[test]
    fn interrupted_search_ends() {
        let n = 10;
        let candidates = vec![(0..n).collect::<Vec<_>>(); n];
        let order: Vec<usize> = (0..n).collect();
        // The last two never go together, and no two GPUs are alike.
        let fit = |a: (usize, usize), b: (usize, usize)| a.0.min(b.0) < n - 2;
        let problem =
            Problem { candidates: &candidates, gpus: n, fit: &fit, alike: &|_, _| false, order: &order };
        assert_eq!(assign(&problem, || Err("too long")), Err("too long"));
    }
}
