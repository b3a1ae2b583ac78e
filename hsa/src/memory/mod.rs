// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the program has: allocated of pools, its own and locked, imported; who may access it.
//!
//! INVARIANT: every address that an agent may be told of lies in a [`Block`], found by any address in it.
#![allow(unsafe_code)]

mod batch;
mod engine;
mod files;
mod fill;
mod fragments;
mod lock;
mod pointer;
mod rect;
mod share;
mod svm;
mod transfer;
mod vmem;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use parking_lot::{Mutex, RwLock};
use stasis::{AllocError, Buffer, FreeError, Registered};

use self::engine::Engines;
use self::fragments::Fragments;
use self::vmem::Ranges;
use crate::abi::declared::*;
use crate::abi::{
    Data, ERROR, INVALID_ALLOCATION, INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, Status, export, slice,
};
use crate::code::Loaded;
use crate::instance::{Instance, instance};
use crate::pools::Pool;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Called when memory is freed: AMD's `hsa_amd_deallocation_callback_t`.
pub type Deallocation = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Where a block came from.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// A pool.
    Pool(Pool),
    /// The program's own memory at this address.
    Locked(u64),
    /// Another process, by a descriptor.
    Imported,
    /// Another process, by a handle.
    Attached,
    /// Reserved addresses, into which memory is mapped.
    Reserved,
    /// The image of a code object on an agent, by its position.
    Code(usize),
}

/// A range of addresses with memory.
#[derive(Debug)]
pub struct Block {
    /// Its memory; `None` for a code object's, which belongs to the executable.
    buffer: Option<Buffer>,
    /// Whether the buffer has other blocks too.
    is_fragment: bool,
    base: u64,
    bytes: u64,
    pub origin: Origin,
    /// The registration, whose end ends it.
    _registered: Option<Registered>,
    /// What the program keeps beside it.
    pub user_data: AtomicPtr<c_void>,
    callbacks: Mutex<Vec<Callback>>,
}

#[derive(Clone, Copy, Debug)]
struct Callback {
    function: Deallocation,
    data: Data,
}

impl Block {
    pub fn new(buffer: Buffer, origin: Origin) -> Self {
        let (base, bytes) = (buffer.va(), buffer.len());
        Block { buffer: Some(buffer), ..Block::at(base, bytes, origin) }
    }

    /// A part of a buffer, whose end is the buffer's.
    pub fn part(buffer: Buffer, offset: u64, bytes: u64, origin: Origin) -> Self {
        let base = buffer.va() + offset;
        Block { buffer: Some(buffer), ..Block::at(base, bytes, origin) }
    }

    /// The image of a code object.
    pub fn code(loaded: &Loaded) -> Self {
        Block::at(loaded.base(), loaded.bytes(), Origin::Code(loaded.agent))
    }

    fn at(base: u64, bytes: u64, origin: Origin) -> Self {
        Block {
            buffer: None,
            is_fragment: false,
            base,
            bytes,
            origin,
            _registered: None,
            user_data: AtomicPtr::default(),
            callbacks: Mutex::default(),
        }
    }

    /// The program's own memory that agents use where it is.
    fn shared(start: u64, bytes: u64) -> Self {
        Block::at(start, bytes, Origin::Locked(start))
    }

    fn locked(registered: Registered) -> Self {
        let host = registered.as_ptr().expose_provenance() as u64;
        let buffer = registered.buffer().clone();
        Block { _registered: Some(registered), ..Block::new(buffer, Origin::Locked(host)) }
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its memory.
    ///
    /// # Errors
    /// [`INVALID_ALLOCATION`] for a code object's.
    pub fn buffer(&self) -> Outcome<&Buffer> {
        self.buffer.as_ref().ok_or(INVALID_ALLOCATION)
    }

    /// Whether it is a free that ends it.
    fn is_freed(&self) -> bool {
        matches!(self.origin, Origin::Pool(_) | Origin::Imported | Origin::Attached)
    }

    /// Its memory, and where in that a place of the block's is.
    ///
    /// # Errors
    /// As for [`Self::buffer`].
    pub fn place(&self, offset: u64) -> Outcome<(&Buffer, u64)> {
        let buffer = self.buffer()?;
        Ok((buffer, self.base - buffer.va() + offset))
    }

    /// The GPU of whose memory it is, by its index in the runtime; `None` for the host's, and for what is no pool's.
    fn owner(&self, instance: &Instance) -> Option<usize> {
        match self.origin {
            Origin::Pool(pool) => Some(instance.agents.at(pool.agent)?.gpu().ok()?.index()),
            _ => None,
        }
    }

    /// Whether the CPU sees it under the same address.
    pub fn is_visible(&self, instance: &Instance) -> bool {
        match (&self.buffer, self.origin) {
            (_, Origin::Locked(host)) => host == self.base,
            (Some(buffer), _) => buffer.is_visible(),
            (None, Origin::Code(agent)) => {
                let gpu = instance.agents.at(agent).and_then(|device| device.gpu().ok());
                gpu.is_some_and(|gpu| gpu.vram().is_visible())
            }
            (None, _) => false,
        }
    }
}

/// What is locked from a page on.
#[derive(Debug, Default)]
struct Locked {
    /// Each longer than the one before.
    blocks: Vec<Arc<Block>>,
    /// Locks that were not taken back.
    count: usize,
    /// What its locks have let agents use where it is.
    given: Vec<Given>,
}

/// Memory that an agent may use since it was locked.
#[derive(Debug)]
struct Given {
    pages: Range<u64>,
    /// By its position.
    agent: usize,
}

/// All memory of the program.
#[derive(Debug)]
pub struct Memory {
    blocks: RwLock<BTreeMap<u64, Arc<Block>>>,
    /// Locked memory by the address of its first page.
    locks: Mutex<BTreeMap<u64, Locked>>,
    pub(crate) engines: Engines,
    fragments: Fragments,
    ranges: Ranges,
}

impl Memory {
    pub fn new() -> Self {
        Memory {
            blocks: RwLock::default(),
            locks: Mutex::default(),
            engines: Engines::default(),
            fragments: Fragments::default(),
            ranges: Ranges::new(),
        }
    }

    /// Adds a block under its address.
    pub fn add(&self, block: Block) -> Arc<Block> {
        let block = Arc::new(block);
        self.blocks.write().insert(block.base(), Arc::clone(&block));
        block
    }

    /// The block that an agent's address lies in, and how far from its start.
    pub fn find(&self, address: u64) -> Option<(Arc<Block>, u64)> {
        let blocks = self.blocks.read();
        let (base, block) = blocks.range(..=address).next_back()?;
        let offset = address - base;
        (offset < block.bytes()).then(|| (Arc::clone(block), offset))
    }

    /// The locked block that an address of the program's own lies in, and how far from its start.
    fn find_locked(&self, address: u64) -> Option<(Arc<Block>, u64)> {
        let locks = self.locks.lock();
        // Ranges may overlap, and the nearest one may end before.
        locks.range(..=address).rev().find_map(|(base, locked)| {
            let offset = address - base;
            let block = locked.blocks.iter().find(|block| offset < block.bytes())?;
            Some((Arc::clone(block), offset))
        })
    }

    /// The block that holds all of a range of an agent's addresses, or of locked ones of the program's own.
    pub fn reach(&self, address: u64, bytes: u64) -> Option<(Arc<Block>, u64)> {
        let (block, offset) = self.find(address).or_else(|| self.find_locked(address))?;
        (bytes <= block.bytes() - offset).then_some((block, offset))
    }

    /// Ends what was allocated, which its address names.
    fn free(&self, address: u64) -> Outcome {
        self.free_of(address, |_| true)
    }

    /// The same of what came from there.
    pub fn free_of(&self, address: u64, is_from: impl Fn(Origin) -> bool) -> Outcome {
        // Of two threads that free the same, one does.
        let block = match self.blocks.write().entry(address) {
            Entry::Occupied(found) if found.get().is_freed() && is_from(found.get().origin) => found.remove(),
            _ => return Err(INVALID_ALLOCATION),
        };
        let callbacks = std::mem::take(&mut *block.callbacks.lock());
        for callback in callbacks {
            // SAFETY: the program's function, with what it gave for it.
            unsafe { (callback.function)(pointer_to(address), callback.data.0) };
        }
        if block.is_fragment {
            self.fragments.free(block.buffer()?, block.base(), block.bytes());
            return Ok(());
        }
        match block.buffer()?.free() {
            Ok(()) | Err(FreeError::Stale { .. }) => Ok(()),
            Err(error) => {
                tracing::debug!(target: "hsa", error = %stasis::explain(&error), "memory was not freed");
                self.blocks.write().insert(address, block);
                Err(Status(HSA_STATUS_ERROR_RESOURCE_FREE))
            }
        }
    }

    /// Has memory of a block that another process may have from now on be no other block's.
    pub fn keep_apart(&self, block: &Block) {
        if let (true, Some(buffer)) = (block.is_fragment, &block.buffer) {
            self.fragments.keep_apart(buffer);
        }
    }

    /// Bytes that are allocated of the driver and not by the program.
    pub fn unused(&self) -> u64 {
        self.fragments.unused()
    }

    /// Forgets a block that is somebody else's.
    pub fn forget(&self, base: u64) {
        self.blocks.write().remove(&base);
    }

    /// Frees everything.
    pub fn clear(&self) {
        self.engines.clear();
        self.ranges.clear();
        self.locks.lock().clear();
        self.blocks.write().clear();
        self.fragments.clear();
    }
}

/// The status for an allocation that failed.
pub fn status_of(error: AllocError) -> Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(&error), "an allocation failed");
    match error {
        AllocError::Empty | AllocError::Pages { .. } => INVALID_ARGUMENT,
        AllocError::NoPath(_) => Status(HSA_STATUS_ERROR_INVALID_AGENT),
        AllocError::Lost(_) => ERROR,
        _ => OUT_OF_RESOURCES,
    }
}

/// An address as the program's pointer.
pub fn pointer_to(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(queues::words::size(address))
}

/// A pointer of the program's as an address.
pub fn address_of<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Whole pages that hold some bytes.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for bytes beyond the end of all addresses.
fn whole_pages(address: u64, bytes: u64) -> Outcome<Range<u64>> {
    let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE));
    Ok(address & !(PAGE - 1)..end.ok_or(INVALID_ARGUMENT)?)
}

/// The agents of a list.
pub fn agents_of<'i>(instance: &'i Instance, agents: &[hsa_agent_t]) -> Outcome<Vec<&'i stasis::Agent>> {
    let devices = agents.iter().map(|agent| instance.agents.get(*agent)).collect::<Outcome<Vec<_>>>()?;
    Ok(devices.into_iter().filter_map(|device| device.gpu().ok()).collect())
}

fn allocate(instance: &Instance, pool: Pool, size: usize) -> Outcome<*mut c_void> {
    let memory = &instance.memory;
    let block = match memory.fragments.alloc(instance, pool, size as u64) {
        Some(fragment) => fragment,
        None => Block::new(pool.alloc(instance, size)?, Origin::Pool(pool)),
    };
    Ok(pointer_to(memory.add(block).base()))
}

export! {
    /// Memory of a pool.
    fn hsa_amd_memory_pool_allocate(
        memory_pool: hsa_amd_memory_pool_t,
        size: usize,
        flags: u32,
        ptr: *mut *mut c_void,
    ) {
        let instance = instance()?;
        let pool = Pool::find(instance, memory_pool)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(ptr) }?;
        let _ = flags;
        out.put(allocate(instance, pool, size)?);
        Ok(())
    }

    /// Ends what `hsa_amd_memory_pool_allocate` gave; null is nothing.
    fn hsa_amd_memory_pool_free(ptr: *mut c_void) {
        let instance = instance()?;
        if ptr.is_null() { Ok(()) } else { instance.memory.free(address_of(ptr)) }
    }

    /// Memory of a region.
    fn hsa_memory_allocate(region: hsa_region_t, size: usize, ptr: *mut *mut c_void) {
        let instance = instance()?;
        let pool = Pool::of_region(instance, region)?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(ptr) }?;
        out.put(allocate(instance, pool, size)?);
        Ok(())
    }

    /// Ends what `hsa_memory_allocate` gave; null is nothing.
    fn hsa_memory_free(ptr: *mut c_void) {
        let instance = instance()?;
        if ptr.is_null() { Ok(()) } else { instance.memory.free(address_of(ptr)) }
    }

    /// Says who, beside the owner, may access memory: these agents and no others.
    fn hsa_amd_agents_allow_access(
        num_agents: u32,
        agents: *const hsa_agent_t,
        flags: *const u32,
        ptr: *const c_void,
    ) {
        let instance = instance()?;
        if num_agents == 0 || agents.is_null() || !flags.is_null() || ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's, by the header.
        let listed = agents_of(instance, unsafe { slice(agents, num_agents as usize) }?)?;
        let (block, _) = instance.memory.find(address_of(ptr)).ok_or(ERROR)?;
        allow_only(instance, &block, &listed)
    }

    /// Has an agent own memory, which it does not need to.
    fn hsa_memory_assign_agent(ptr: *mut c_void, agent: hsa_agent_t, access: hsa_access_permission_t) {
        let instance = instance()?;
        instance.agents.get(agent)?;
        if ptr.is_null()
            || !matches!(access, HSA_ACCESS_PERMISSION_RO | HSA_ACCESS_PERMISSION_WO | HSA_ACCESS_PERMISSION_RW)
        {
            return Err(INVALID_ARGUMENT);
        }
        Ok(())
    }

    /// Says that memory of the program will be used by agents; how, `hsa_amd_memory_lock` says.
    fn hsa_memory_register(ptr: *mut c_void, size: usize) {
        instance()?;
        if ptr.is_null() || size == 0 { Err(INVALID_ARGUMENT) } else { Ok(()) }
    }

    /// Takes `hsa_memory_register` back.
    fn hsa_memory_deregister(ptr: *mut c_void, _size: usize) {
        let _ = ptr;
        instance().map(drop)
    }

    /// Moves memory to another pool: nothing can move.
    fn hsa_amd_memory_migrate(ptr: *const c_void, memory_pool: hsa_amd_memory_pool_t, _flags: u32) {
        let instance = instance()?;
        if ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        Pool::find(instance, memory_pool)?;
        Err(OUT_OF_RESOURCES)
    }

    /// Has a function called when memory is freed.
    fn hsa_amd_register_deallocation_callback(
        ptr: *mut c_void,
        callback: hsa_amd_deallocation_callback_t,
        user_data: *mut c_void,
    ) {
        let instance = instance()?;
        let function = callback.ok_or(INVALID_ARGUMENT)?;
        if ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let (block, _) = instance.memory.find(address_of(ptr)).ok_or(INVALID_ALLOCATION)?;
        block.callbacks.lock().push(Callback { function, data: Data(user_data) });
        Ok(())
    }

    /// Takes `hsa_amd_register_deallocation_callback` back.
    fn hsa_amd_deregister_deallocation_callback(ptr: *mut c_void, callback: hsa_amd_deallocation_callback_t) {
        let instance = instance()?;
        let function = callback.ok_or(INVALID_ARGUMENT)?;
        if ptr.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let (block, _) = instance.memory.find(address_of(ptr)).ok_or(INVALID_ARGUMENT)?;
        let mut callbacks = block.callbacks.lock();
        let found = callbacks.iter().position(|known| std::ptr::fn_addr_eq(known.function, function));
        callbacks.swap_remove(found.ok_or(INVALID_ARGUMENT)?);
        Ok(())
    }
}

/// Lets these agents access a block, beside its owner. Of the host's memory all agents have access at any time.
fn allow_only(instance: &Instance, block: &Block, listed: &[&stasis::Agent]) -> Outcome {
    if matches!(block.origin, Origin::Imported | Origin::Attached) {
        // Whose it is another process knows, so nobody is denied.
        return listed.iter().try_for_each(|agent| block.buffer()?.allow(agent).map_err(status_of));
    }
    let Some(owner) = block.owner(instance) else { return Ok(()) };
    for agent in instance.agents.gpus().filter(|agent| agent.index() != owner) {
        let changed = match listed.iter().any(|listed| listed.index() == agent.index()) {
            true => block.buffer()?.allow(agent),
            false => block.buffer()?.deny(agent),
        };
        changed.map_err(status_of)?;
    }
    Ok(())
}
