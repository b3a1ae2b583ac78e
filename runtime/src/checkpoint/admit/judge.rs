// SPDX-License-Identifier: MIT OR Apache-2.0
//! The judgement: the agents a process had against the GPUs that are here.
//!
//! INVARIANT: a pure function of its arguments. It gives every agent a GPU under all rules, or every reason why that
//! cannot be.

use stasis_protocol::Limit;

use super::checks::Checks;
use super::difference::{Difference, Subject, Value};
use super::identity::{AgentIdentity, Candidate, CpuLink, Interface, Likeness, LinkKind};
use super::peers::PeerMappings;
use super::place;
use super::refusal::Refusal;
use super::rules::{
    AGENT_LINK, CPU_LINK, GPU_ID, GPUS, KFD_MAJOR, KFD_MINOR, NUMA_NODE, PEER_MAPPING, Rule, numbers,
};
use super::search::{Outcome, Problem, assign};
use super::terms::Admission;

/// What is compared with what.
pub(super) struct Case<'a> {
    /// The agents that the process had.
    pub agents: &'a [AgentIdentity],
    /// The GPUs that are here.
    pub gpus: &'a [Candidate],
    /// The driver that is here.
    pub interface: Interface,
    /// The driver has the process's state for its very GPUs: nobody changes place.
    pub in_place: bool,
    /// What agents map of each other's memory.
    pub mapped: &'a PeerMappings,
}

/// The GPU of each agent. Paths are only given up where no assignment keeps them all.
pub(super) fn judge(case: &Case<'_>, admission: &Admission, limit: &Limit) -> Result<Vec<usize>, Refusal> {
    match assignment(case, admission, false, limit) {
        Err(Refusal::Differences(_)) if admission.allow_staged => assignment(case, admission, true, limit),
        outcome => outcome,
    }
}

/// Paths from one agent to another that are not here, or not as good, where the agents sit on `chosen`.
pub(super) fn lost_paths(case: &Case<'_>, chosen: &[usize]) -> Vec<Difference> {
    let judge = Judge { case, checks: &Checks::default(), staged: false };
    let agents: Vec<_> = chosen.iter().copied().enumerate().collect();
    let pairs = agents.iter().flat_map(|&a| agents.iter().map(move |&b| (a, b)));
    pairs.filter(|(a, b)| a != b).filter_map(|(a, b)| judge.link(a, b)).collect()
}

fn assignment(
    case: &Case<'_>,
    admission: &Admission,
    staged: bool,
    limit: &Limit,
) -> Result<Vec<usize>, Refusal> {
    let judge = Judge { case, checks: &admission.checks, staged };
    let uuids: Vec<_> = case.agents.iter().map(AgentIdentity::uuid).collect();
    let here: Vec<_> = case.gpus.iter().map(Candidate::uuid).collect();
    let given = place::resolve(&admission.places, &uuids, &here)?;
    let wanted: Vec<_> = (0..case.agents.len()).map(|agent| judge.wanted(agent, &given)).collect();
    let alone = |agent: usize, gpu: usize| judge.alone(agent, gpu).is_empty();
    let candidates: Vec<Vec<usize>> = (wanted.iter().enumerate())
        .map(|(agent, gpus)| gpus.iter().copied().filter(|&gpu| alone(agent, gpu)).collect())
        .collect();
    let mut order: Vec<usize> = (0..case.agents.len()).collect();
    order.sort_by_key(|&agent| judge.urgency(agent, &given, &candidates[agent]));
    let fit = |a, b| judge.together(a, b).next().is_none();
    let problem = Problem {
        candidates: &candidates,
        gpus: case.gpus.len(),
        fit: &fit,
        alike: &|a, b| judge.alike(a, b),
        order: &order,
    };
    match assign(&problem, || limit.check())? {
        Outcome::Found(gpus) => Ok(gpus),
        Outcome::Impossible { furthest } => {
            Err(Refusal::Differences(judge.reasons(&wanted, &candidates, &order, &furthest)))
        }
    }
}

struct Judge<'a> {
    case: &'a Case<'a>,
    checks: &'a Checks,
    /// Copies may go through the host's memory.
    staged: bool,
}

impl Judge<'_> {
    fn likeness(&self, agent: usize, gpu: usize) -> Likeness {
        self.case.agents[agent].likeness(agent, &self.case.gpus[gpu])
    }

    /// The GPUs that an agent may be put on, the most alike first.
    fn wanted(&self, agent: usize, given: &[Option<usize>]) -> Vec<usize> {
        if let Some(gpu) = given[agent] {
            return vec![gpu];
        }
        let free = |gpu: &usize| !given.contains(&Some(*gpu));
        let mut gpus: Vec<_> = (0..self.case.gpus.len()).filter(free).collect();
        gpus.sort_by_key(|&gpu| self.likeness(agent, gpu));
        gpus
    }

    /// The order in which agents choose: those whose GPU is given, then those that find their own GPU, then those that find
    /// their position.
    fn urgency(&self, agent: usize, given: &[Option<usize>], candidates: &[usize]) -> (bool, Likeness) {
        let best = candidates.iter().map(|&gpu| self.likeness(agent, gpu)).min();
        (given[agent].is_none(), best.unwrap_or(Likeness::None))
    }

    fn is_checked(&self, rule: Rule) -> bool {
        !(rule.staged && self.staged) && rule.switch.is_none_or(|switch| self.checks.is_on(switch))
    }

    fn subject(&self, agent: usize, gpu: usize, with: Option<usize>) -> Subject {
        let (uuid, place) = (self.case.agents[agent].uuid(), self.case.gpus[gpu].uuid());
        Subject::Agent { index: agent, uuid, place, with }
    }

    /// What is in the way of one agent on one GPU, whatever becomes of the others.
    fn alone(&self, agent: usize, gpu: usize) -> Vec<Difference> {
        let (had, here) = (&self.case.agents[agent], &self.case.gpus[gpu]);
        let differs = |rule: Rule, had: Value, here: Value| {
            let subject = match [KFD_MAJOR, KFD_MINOR].contains(&rule) {
                true => Subject::Machine,
                false => self.subject(agent, gpu, None),
            };
            Difference::new(rule, subject, had, here)
        };
        let mut differences: Vec<_> = numbers()
            .filter(|rule| self.is_checked(*rule))
            .filter_map(|rule| {
                let had = *had.properties.get(rule.property)?;
                let here = here.property(rule.property, self.case.interface)?;
                (!rule.holds(had, here)).then(|| differs(rule, Value::Number(had), Value::Number(here)))
            })
            .collect();
        let (had_cpu, cpu) = (had.cpu().map(|link| link.kind), here.cpu.map(|link| link.kind));
        if !LinkKind::does(had_cpu, cpu) {
            differences.push(differs(CPU_LINK, Value::Link(had_cpu), Value::Link(cpu)));
        }
        if let Some(id) = had.gpu_id.filter(|&id| self.case.in_place && id != here.placement.gpu.0) {
            differences.push(differs(
                GPU_ID,
                Value::Number(id.into()),
                Value::Number(here.placement.gpu.0.into()),
            ));
        }
        differences
    }

    /// The link from one agent to another, if it is too little.
    fn link(&self, (a, on): (usize, usize), (b, other): (usize, usize)) -> Option<Difference> {
        let had = self.case.agents[a].link_to(b);
        let here = self.case.gpus[on].link_to(&self.case.gpus[other]);
        let differs =
            || Difference::new(AGENT_LINK, self.subject(a, on, Some(b)), Value::Link(had), Value::Link(here));
        (self.is_checked(AGENT_LINK) && !LinkKind::does(had, here)).then(differs)
    }

    /// What an agent maps in another's memory, if there is no way to it any more.
    fn mapping(&self, (peer, on): (usize, usize), (owner, other): (usize, usize)) -> Option<Difference> {
        let buffers = *self.case.mapped.get(&(owner, peer))?;
        // What an older image does not say, and paths that no link told of, are not compared.
        let had = self.case.agents[peer].link_to(owner)?;
        let here = self.case.gpus[on].link_to(&self.case.gpus[other]);
        let differs = || {
            let subject = Subject::Buffers { buffers, owner, peer };
            Difference::new(PEER_MAPPING, subject, Value::Link(Some(had)), Value::Link(here))
        };
        here.is_none().then(differs)
    }

    /// The CPU node beside an agent, if it is not the other's any more.
    fn apart(&self, (a, on): (usize, usize), (b, other): (usize, usize)) -> Option<Difference> {
        let node = |link: Option<CpuLink>| link.map(|link| link.node);
        let had = node(self.case.agents[a].cpu())?;
        let here = node(self.case.gpus[on].cpu)?;
        let were_together = node(self.case.agents[b].cpu())? == had;
        let are_apart = node(self.case.gpus[other].cpu)? != here;
        let number = |node: u32| Value::Number(node.into());
        let differs = || Difference::new(NUMA_NODE, self.subject(a, on, Some(b)), number(had), number(here));
        (self.is_checked(NUMA_NODE) && were_together && are_apart).then(differs)
    }

    /// What is in the way of one agent on one GPU while another is on another.
    fn together(&self, a: (usize, usize), b: (usize, usize)) -> impl Iterator<Item = Difference> {
        let links = [self.link(a, b), self.link(b, a)];
        let mappings = [self.mapping(a, b), self.mapping(b, a)];
        links.into_iter().chain(mappings).chain([self.apart(a, b)]).flatten()
    }

    /// Whether two GPUs could change places without any rule about two agents noticing.
    fn alike(&self, a: usize, b: usize) -> bool {
        let gpus = self.case.gpus;
        let node = |gpu: usize| gpus[gpu].cpu.map(|link| link.node);
        let link = |from: usize, to: usize| gpus[from].link_to(&gpus[to]);
        let mut others = (0..gpus.len()).filter(|&other| other != a && other != b);
        node(a) == node(b)
            && link(a, b) == link(b, a)
            && others.all(|c| link(a, c) == link(b, c) && link(c, a) == link(c, b))
    }

    /// Every reason: of each agent that no GPU would do for, the differences to the one that comes closest; and if each
    /// would find one by itself, why they do not find them together.
    fn reasons(
        &self,
        wanted: &[Vec<usize>],
        candidates: &[Vec<usize>],
        order: &[usize],
        furthest: &[(usize, usize)],
    ) -> Vec<Difference> {
        let (agents, gpus) = (self.case.agents.len(), self.case.gpus.len());
        let mut reasons = Vec::new();
        let number = |count: usize| Value::Number(count as u64);
        if gpus < agents {
            reasons.push(Difference::new(GPUS, Subject::Machine, number(agents), number(gpus)));
        }
        for agent in (0..agents).filter(|&agent| candidates[agent].is_empty()) {
            // `wanted` has the most alike first, and of equals the first is taken.
            let closest = wanted[agent].iter().map(|&gpu| self.alone(agent, gpu)).min_by_key(Vec::len);
            for difference in closest.unwrap_or_default() {
                // The machine's are the same for all agents.
                if !reasons.contains(&difference) {
                    reasons.push(difference);
                }
            }
        }
        if !reasons.is_empty() {
            return reasons;
        }
        let Some(&stuck) = order.get(furthest.len()) else { return reasons };
        let in_the_way = |gpu: usize| -> Vec<Difference> {
            furthest.iter().flat_map(|&other| self.together((stuck, gpu), other)).collect()
        };
        let free = |gpu: &&usize| furthest.iter().all(|(_, taken)| taken != *gpu);
        let closest = candidates[stuck].iter().filter(free).map(|&gpu| in_the_way(gpu)).min_by_key(Vec::len);
        closest.unwrap_or_else(|| self.beyond(stuck, wanted, candidates))
    }

    /// What an agent that found all its GPUs taken would have to bear on the next best.
    fn beyond(&self, agent: usize, wanted: &[Vec<usize>], candidates: &[Vec<usize>]) -> Vec<Difference> {
        let others = wanted[agent].iter().filter(|gpu| !candidates[agent].contains(gpu));
        others.map(|&gpu| self.alone(agent, gpu)).min_by_key(Vec::len).unwrap_or_default()
    }
}
