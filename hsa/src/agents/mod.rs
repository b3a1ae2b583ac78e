// SPDX-License-Identifier: MIT OR Apache-2.0
//! Agents: the host's processors, then the GPUs of the runtime; their caches.
#![allow(unsafe_code)]

mod caches;
mod host;
mod info;

pub use self::info::{MAX_FBARRIERS, MAX_WORKGROUP, image_limits};

use std::ffi::c_void;

use kfd::topology::Node;
use stasis::Runtime;

use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_AGENT, INVALID_ARGUMENT, Out, Outcome, each, export};
use crate::handles::{Kind, fixed, number};
use crate::instance::instance;
use crate::system;

/// What an agent is.
#[derive(Debug)]
pub enum Device {
    /// A processor of the host: its node, and its name.
    Host { node: Box<Node>, name: String },
    /// A GPU.
    Gpu(stasis::Agent),
}

impl Device {
    pub fn node(&self) -> &Node {
        match self {
            Device::Host { node, .. } => node,
            Device::Gpu(agent) => agent.node(),
        }
    }

    /// The GPU.
    ///
    /// # Errors
    /// [`INVALID_AGENT`] for a processor of the host.
    pub fn gpu(&self) -> Outcome<&stasis::Agent> {
        match self {
            Device::Gpu(agent) => Ok(agent),
            Device::Host { .. } => Err(INVALID_AGENT),
        }
    }
}

/// All agents, in the order in which they are iterated.
#[derive(Debug)]
pub struct Agents {
    devices: Vec<Device>,
    hosts: usize,
}

impl Agents {
    pub fn new(runtime: &Runtime) -> Self {
        let name = host::name();
        let mut devices: Vec<Device> = runtime
            .hosts()
            .iter()
            .map(|node| Device::Host { node: Box::new(node.clone()), name: name.clone() })
            .collect();
        let hosts = devices.len();
        devices.extend(runtime.agents().into_iter().map(Device::Gpu));
        Agents { devices, hosts }
    }

    /// The agent of a handle.
    ///
    /// # Errors
    /// [`INVALID_AGENT`].
    pub fn get(&self, agent: hsa_agent_t) -> Outcome<&Device> {
        self.index(agent).map(|index| &self.devices[index])
    }

    /// The GPU of a handle.
    ///
    /// # Errors
    /// [`INVALID_AGENT`].
    pub fn gpu(&self, agent: hsa_agent_t) -> Outcome<&stasis::Agent> {
        self.get(agent)?.gpu()
    }

    /// The position of a handle's agent.
    ///
    /// # Errors
    /// [`INVALID_AGENT`].
    pub fn index(&self, agent: hsa_agent_t) -> Outcome<usize> {
        let index = number(Kind::Agent, agent.handle).ok_or(INVALID_AGENT)?;
        if index < self.devices.len() { Ok(index) } else { Err(INVALID_AGENT) }
    }

    pub fn at(&self, index: usize) -> Option<&Device> {
        self.devices.get(index)
    }

    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// The handle of the agent at a position.
    pub fn handle(index: usize) -> hsa_agent_t {
        hsa_agent_t { handle: fixed(Kind::Agent, queues::words::count(index)) }
    }

    /// The handle of a GPU by its index in the runtime.
    pub fn handle_of_gpu(&self, gpu: usize) -> hsa_agent_t {
        Self::handle(self.hosts + gpu)
    }

    /// The handle of the first processor of the host.
    pub fn host(&self) -> hsa_agent_t {
        Self::handle(0)
    }

    /// The GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &stasis::Agent> {
        self.devices.iter().filter_map(|device| device.gpu().ok())
    }
}

type AgentCallback = unsafe extern "C" fn(hsa_agent_t, *mut c_void) -> hsa_status_t;

export! {
    /// Calls back for every agent.
    fn hsa_iterate_agents(callback: Option<AgentCallback>, data: *mut c_void) {
        let instance = instance()?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(0..instance.agents.len(), |index| unsafe { callback(Agents::handle(index), data) })
    }

    /// An attribute of an agent.
    fn hsa_agent_get_info(agent: hsa_agent_t, attribute: hsa_agent_info_t, value: *mut c_void) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        info::answer(instance, index, attribute, answer)
    }

    /// How exceptions may be handled on an agent: none can.
    fn hsa_agent_get_exception_policies(agent: hsa_agent_t, _profile: hsa_profile_t, mask: *mut u16) {
        instance()?.agents.get(agent)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(mask) }?.put(0);
        Ok(())
    }

    /// Whether an agent has an extension in a version.
    fn hsa_agent_extension_supported(
        extension: u16,
        agent: hsa_agent_t,
        _version_major: u16,
        _version_minor: u16,
        result: *mut bool,
    ) {
        instance()?.agents.get(agent)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(result) }?;
        out.put(is_supported(extension));
        system::check_known(extension)
    }

    /// The newest minor version of an extension that an agent has.
    fn hsa_agent_major_extension_supported(
        extension: u16,
        agent: hsa_agent_t,
        _version_major: u16,
        version_minor: *mut u16,
        result: *mut bool,
    ) {
        instance()?.agents.get(agent)?;
        // SAFETY: the caller's, by the header.
        let (minor, out) = unsafe { (Out::new(version_minor)?, Out::new(result)?) };
        minor.put(0);
        out.put(is_supported(extension));
        system::check_known(extension)
    }

    /// Calls back for every cache of an agent.
    fn hsa_agent_iterate_caches(
        agent: hsa_agent_t,
        callback: Option<unsafe extern "C" fn(hsa_cache_t, *mut c_void) -> hsa_status_t>,
        data: *mut c_void,
    ) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(caches::handles(instance, index), |cache| unsafe { callback(cache, data) })
    }

    /// An attribute of a cache.
    fn hsa_cache_get_info(cache: hsa_cache_t, attribute: hsa_cache_info_t, value: *mut c_void) {
        let instance = instance()?;
        let cache = caches::find(instance, cache)?;
        // SAFETY: the caller's, by the header.
        caches::answer(cache, attribute, unsafe { Answer::new(value) }?)
    }

    /// The limit from which on a dispatch's scratch is not kept. Scratch is kept as long as the queue is.
    fn hsa_amd_agent_set_async_scratch_limit(agent: hsa_agent_t, _threshold: usize) {
        instance()?.agents.gpu(agent)?;
        // As AMD's runtime answers for agents that cannot take scratch back.
        Err(INVALID_ARGUMENT)
    }

    /// The coherency of an agent's fine-grained memory, which is always kept.
    fn hsa_amd_coherency_get_type(agent: hsa_agent_t, coherency: *mut hsa_amd_coherency_type_t) {
        instance()?.agents.gpu(agent)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(coherency) }?.put(HSA_AMD_COHERENCY_TYPE_COHERENT);
        Ok(())
    }

    /// Succeeds, as on every device since Kaveri.
    fn hsa_amd_coherency_set_type(agent: hsa_agent_t, coherency: hsa_amd_coherency_type_t) {
        instance()?.agents.gpu(agent)?;
        match coherency {
            HSA_AMD_COHERENCY_TYPE_COHERENT | HSA_AMD_COHERENCY_TYPE_NONCOHERENT => Ok(()),
            _ => Err(INVALID_ARGUMENT),
        }
    }
}

/// Whether agents have an extension: images, as far as asking for limits goes.
fn is_supported(extension: u16) -> bool {
    hsa_extension_t::from(extension) == HSA_EXTENSION_IMAGES
}
