// SPDX-License-Identifier: MIT OR Apache-2.0
//! SVM under a kernel that was built with it: refusals in the kernel's order, attributes, and what GPUs have mapped.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::harness::{self, Client, Fds, GTT, Memory, VRAM};
use super::queues::BASE;
use kfd::sys::*;
use nix::errno::Errno;
use proptest::prelude::*;

use crate::driver::ledger::Resource;
use crate::driver::{UserPages, memfd};
use crate::hardware::PageAccess;

const VA: u64 = 0x5000_0000;
pub const PAGE: u64 = 4096;
pub const SET: u32 = KFD_IOCTL_SVM_OP_SET_ATTR;
const GET: u32 = KFD_IOCTL_SVM_OP_GET_ATTR;
pub const ACCESS: u32 = KFD_IOCTL_SVM_ATTR_ACCESS;
pub const IN_PLACE: u32 = KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE;
pub const NO_ACCESS: u32 = KFD_IOCTL_SVM_ATTR_NO_ACCESS;
pub const SET_FLAGS: u32 = KFD_IOCTL_SVM_ATTR_SET_FLAGS;
const CLEAR_FLAGS: u32 = KFD_IOCTL_SVM_ATTR_CLR_FLAGS;
const PREFERRED: u32 = KFD_IOCTL_SVM_ATTR_PREFERRED_LOC;
const PREFETCH: u32 = KFD_IOCTL_SVM_ATTR_PREFETCH_LOC;
pub const GRANULARITY: u32 = KFD_IOCTL_SVM_ATTR_GRANULARITY;
const UNDEFINED: u32 = KFD_IOCTL_SVM_LOCATION_UNDEFINED;

fn ready() -> Client {
    let client = Client::with_svm("gfx1100*2");
    client.acquire(0);
    client.acquire(1);
    client
}

pub fn new(bytes: u64) -> UserPages {
    UserPages::New { fd: memfd::create("user", bytes).unwrap(), bytes, writable: true }
}

pub fn unchanged(bytes: u64) -> UserPages {
    UserPages::Unchanged { bytes }
}

/// Sets attributes of so many pages at an address.
pub fn set(
    client: &Client,
    va: u64,
    pages: u64,
    attributes: &[(u32, u32)],
    from: UserPages,
) -> Result<u32, Errno> {
    client.svm(SET, (va, pages * PAGE), &mut attributes.to_vec(), vec![from])
}

/// Asks for attributes of so many pages at an address.
pub fn get(
    client: &Client,
    va: u64,
    pages: u64,
    attributes: &[(u32, u32)],
) -> Result<Vec<(u32, u32)>, Errno> {
    let mut asked = attributes.to_vec();
    client.svm(GET, (va, pages * PAGE), &mut asked, vec![unchanged(pages * PAGE)]).map(|_| asked)
}

/// Lets a GPU access new pages.
pub fn give(client: &Client, va: u64, pages: u64, gpu: usize) {
    set(client, va, pages, &[(ACCESS, client.id(gpu))], new(pages * PAGE)).unwrap();
}

fn access(write: bool, execute: bool) -> PageAccess {
    PageAccess { read: true, write, execute }
}

#[test]
fn kernel_without_svm_refuses_every_call() {
    let client = Client::ready();
    assert_eq!(client.svm(SET, (VA, PAGE), &mut [], vec![]), Err(Errno::EPERM));
    assert_eq!(client.svm(9, (1, 1), &mut [], vec![]), Err(Errno::EPERM));
}

#[test]
fn size_counts_the_attributes() {
    let client = ready();
    let mut head = kfd_ioctl_svm_args { start_addr: VA, size: PAGE, op: SET, nattr: 1 };
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut head), Err(Errno::EINVAL));
    head.nattr = u32::MAX;
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut head), Err(Errno::EINVAL));
}

#[test]
fn spans_are_whole_pages_and_not_empty() {
    let client = ready();
    for span in [(VA + 1, PAGE), (VA, PAGE + 1), (VA, 0), (0, PAGE)] {
        assert_eq!(client.svm(SET, span, &mut [], vec![unchanged(PAGE)]), Err(Errno::EINVAL), "{span:x?}");
        assert_eq!(client.svm(GET, span, &mut [], vec![unchanged(PAGE)]), Err(Errno::EINVAL), "{span:x?}");
    }
    let beyond = (u64::MAX - PAGE + 1, 2 * PAGE);
    assert_eq!(client.svm(SET, beyond, &mut [], vec![unchanged(2 * PAGE)]), Err(Errno::EFAULT));
}

#[test]
fn unknown_operation_attribute_and_gpu_are_einval() {
    let client = ready();
    assert_eq!(client.svm(2, (VA, PAGE), &mut [], vec![unchanged(PAGE)]), Err(Errno::EINVAL));
    assert_eq!(set(&client, VA, 1, &[(8, 0)], unchanged(PAGE)), Err(Errno::EINVAL));
    for kind in [PREFERRED, PREFETCH, ACCESS, IN_PLACE, NO_ACCESS] {
        assert_eq!(set(&client, VA, 1, &[(kind, 5)], unchanged(PAGE)), Err(Errno::EINVAL), "{kind}");
    }
    // The kernel knows no undefined place to prefetch to.
    assert_eq!(set(&client, VA, 1, &[(PREFETCH, UNDEFINED)], unchanged(PAGE)), Err(Errno::EINVAL));
    for attribute in [(PREFERRED, UNDEFINED), (PREFERRED, 0), (PREFETCH, 0), (PREFETCH, client.id(1))] {
        assert_eq!(set(&client, VA, 1, &[attribute], unchanged(PAGE)), Ok(0), "{attribute:?}");
    }
}

#[test]
fn without_an_address_space_nothing_is_set() {
    let client = Client::with_svm("gfx1100*2");
    assert_eq!(set(&client, VA, 1, &[], unchanged(PAGE)), Err(Errno::EINVAL));
    client.acquire(1);
    assert_eq!(set(&client, VA, 1, &[], unchanged(PAGE)), Ok(0));
    let of_other = set(&client, VA, 1, &[(ACCESS, client.id(0))], new(PAGE));
    assert_eq!(of_other, Err(Errno::EINVAL), "this GPU has none");
}

#[test]
fn memory_that_the_client_has_not_mapped_or_cannot_lend_is_efault() {
    let client = ready();
    let mut to_gpu = [(ACCESS, client.id(0))];
    assert_eq!(client.svm(SET, (VA, PAGE), &mut [], vec![]), Err(Errno::EFAULT));
    assert_eq!(client.svm(GET, (VA, PAGE), &mut [], vec![]), Err(Errno::EFAULT));
    for pages in [
        vec![new(PAGE)],
        vec![new(PAGE), new(2 * PAGE)],
        vec![unchanged(2 * PAGE)],
        vec![new(PAGE), unchanged(PAGE)],
    ] {
        assert_eq!(client.svm(SET, (VA, 2 * PAGE), &mut to_gpu, pages), Err(Errno::EFAULT));
    }
    let short = UserPages::New { fd: memfd::create("user", PAGE).unwrap(), bytes: 2 * PAGE, writable: true };
    assert_eq!(client.svm(SET, (VA, 2 * PAGE), &mut to_gpu, vec![short]), Err(Errno::EFAULT));
    let of_nothing = UserPages::Of { handle: 7, offset: 0, bytes: PAGE };
    assert_eq!(client.svm(SET, (VA, PAGE), &mut to_gpu, vec![of_nothing]), Err(Errno::EFAULT));
    assert_eq!(client.hardware.take(), []);
    assert_eq!(client.ledger.used(Resource::System), 0, "a refused call keeps nothing");
}

#[test]
fn ranges_and_mapped_buffers_exclude_each_other() {
    let client = ready();
    let handle = client.alloc(1, VA + PAGE, PAGE, GTT).unwrap();
    client.map(handle, 1).unwrap();
    assert_eq!(set(&client, VA, 2, &[], unchanged(2 * PAGE)), Err(Errno::EADDRINUSE));
    assert_eq!(get(&client, VA, 2, &[]), Err(Errno::EADDRINUSE));
    client.unmap(handle, 1).unwrap();
    set(&client, VA, 2, &[], unchanged(2 * PAGE)).unwrap();
    let alloc = |va, size, flags, mmap_offset| {
        let mut args = client.alloc_args(0, va, size, flags);
        args.mmap_offset = mmap_offset;
        let fds = Fds::of_pages(vec![new(size)]);
        client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &fds)
    };
    assert_eq!(alloc(VA + PAGE, PAGE, GTT, 0), Err(Errno::EADDRINUSE));
    assert_eq!(alloc(VA - PAGE, 2 * PAGE, VRAM, 0), Err(Errno::EADDRINUSE));
    let userptr = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
    assert_eq!(alloc(VA + 0x10_0000, PAGE, userptr, VA), Err(Errno::EADDRINUSE), "by its pages");
    for (va, flags) in [(VA + 2 * PAGE, GTT), (VA - PAGE, GTT), (0, VRAM)] {
        assert_eq!(alloc(va, PAGE, flags, 0), Ok(0), "{va:x}");
    }
    // Checked before the GPU.
    let mut args = client.alloc_args(0, VA, PAGE, GTT);
    args.gpu_id = 0;
    assert_eq!(client.call(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args), Err(Errno::EADDRINUSE));
}

#[test]
fn attributes_that_were_never_set_have_the_kernels_defaults() {
    let client = ready();
    let gpu = client.id(0);
    let all =
        [(PREFERRED, 1), (PREFETCH, 1), (ACCESS, gpu), (SET_FLAGS, 1), (CLEAR_FLAGS, 1), (GRANULARITY, 1)];
    let flags = KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_COHERENT;
    let defaults = vec![
        (PREFERRED, UNDEFINED),
        (PREFETCH, UNDEFINED),
        (NO_ACCESS, gpu),
        (SET_FLAGS, flags),
        (CLEAR_FLAGS, !flags),
        (GRANULARITY, 9),
    ];
    assert_eq!(get(&client, VA, 1, &all), Ok(defaults));
}

#[test]
fn some_attributes_can_only_be_set() {
    let client = ready();
    for kind in [IN_PLACE, NO_ACCESS, 8, u32::MAX] {
        assert_eq!(get(&client, VA, 1, &[(kind, client.id(0))]), Err(Errno::EINVAL), "{kind}");
    }
    assert_eq!(get(&client, VA, 1, &[(ACCESS, 5)]), Err(Errno::EINVAL), "no such GPU");
}

#[test]
fn attributes_are_told_as_they_were_set() {
    let client = ready();
    let (first, second) = (client.id(0), client.id(1));
    let attributes = [
        (PREFERRED, first),
        (PREFETCH, 0),
        (ACCESS, first),
        (IN_PLACE, second),
        (CLEAR_FLAGS, u32::MAX),
        (SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_EXEC),
        (GRANULARITY, 0xff),
    ];
    set(&client, VA, 2, &attributes, new(2 * PAGE)).unwrap();
    let asked =
        [(PREFERRED, 9), (PREFETCH, 9), (ACCESS, first), (ACCESS, second), (SET_FLAGS, 0), (GRANULARITY, 0)];
    let told = vec![
        (PREFERRED, first),
        (PREFETCH, 0),
        (ACCESS, first),
        (IN_PLACE, second),
        (SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_EXEC),
        (GRANULARITY, 0x3f),
    ];
    assert_eq!(get(&client, VA, 2, &asked), Ok(told));
}

#[test]
fn several_ranges_are_told_by_what_they_have_in_common() {
    let client = ready();
    let gpu = client.id(0);
    set(&client, VA, 4, &[(PREFERRED, gpu), (ACCESS, gpu), (GRANULARITY, 5)], new(4 * PAGE)).unwrap();
    let read_only = KFD_IOCTL_SVM_FLAG_GPU_RO;
    let other = [(PREFERRED, 0), (NO_ACCESS, gpu), (SET_FLAGS, read_only), (GRANULARITY, 7)];
    set(&client, VA + PAGE, 1, &other, unchanged(PAGE)).unwrap();
    let asked = [(PREFERRED, 0), (ACCESS, gpu), (SET_FLAGS, 0), (CLEAR_FLAGS, 0), (GRANULARITY, 0)];
    let flags = KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_COHERENT;
    let common = vec![
        (PREFERRED, UNDEFINED),
        (NO_ACCESS, gpu),
        (SET_FLAGS, flags),
        (CLEAR_FLAGS, !(flags | read_only)),
        (GRANULARITY, 5),
    ];
    assert_eq!(get(&client, VA, 4, &asked), Ok(common));
    assert_eq!(
        get(&client, VA + 2 * PAGE, 6, &asked[..2]),
        Ok(vec![(PREFERRED, gpu), (ACCESS, gpu)]),
        "and nothing"
    );
}

#[test]
fn range_is_mapped_where_gpus_have_access_and_unmapped_where_they_lose_it() {
    let client = ready();
    give(&client, VA, 2, 0);
    set(&client, VA, 2, &[(IN_PLACE, client.id(1))], unchanged(2 * PAGE)).unwrap();
    for gpu in 0..2 {
        let entry = client.hardware.page(gpu, VA + PAGE).unwrap();
        assert_eq!((entry.offset, entry.access), (PAGE, access(true, false)));
    }
    set(&client, VA + PAGE, 1, &[(NO_ACCESS, client.id(0))], unchanged(PAGE)).unwrap();
    assert!(client.hardware.page(0, VA).is_some());
    assert_eq!(client.hardware.page(0, VA + PAGE), None);
    assert!(client.hardware.page(1, VA + PAGE).is_some());
    set(&client, VA + PAGE, 1, &[(NO_ACCESS, client.id(1))], unchanged(PAGE)).unwrap();
    let lost = set(&client, VA + PAGE, 1, &[(ACCESS, client.id(0))], unchanged(PAGE));
    assert_eq!(lost, Err(Errno::EFAULT), "the pages are the client's again");
    give(&client, VA + PAGE, 1, 0);
    let (first, second) = (client.hardware.page(0, VA).unwrap(), client.hardware.page(0, VA + PAGE).unwrap());
    assert!(first.memory != second.memory && second.offset == 0);
}

#[test]
fn flags_and_the_clients_own_rights_say_how_a_range_is_mapped() {
    let client = ready();
    give(&client, VA, 1, 0);
    let flags = KFD_IOCTL_SVM_FLAG_GPU_RO | KFD_IOCTL_SVM_FLAG_GPU_EXEC;
    set(&client, VA, 1, &[(SET_FLAGS, flags)], unchanged(PAGE)).unwrap();
    assert_eq!(client.hardware.page(0, VA).unwrap().access, access(false, true));
    set(&client, VA, 1, &[(CLEAR_FLAGS, flags)], unchanged(PAGE)).unwrap();
    assert_eq!(client.hardware.page(0, VA).unwrap().access, access(true, false));
    client.hardware.take();
    set(&client, VA, 1, &[(PREFETCH, client.id(0))], unchanged(PAGE)).unwrap();
    assert_eq!(client.hardware.take(), [], "nothing to do");
    let constants = UserPages::New { fd: memfd::create("user", PAGE).unwrap(), bytes: PAGE, writable: false };
    set(&client, VA + PAGE, 1, &[(ACCESS, client.id(0))], constants).unwrap();
    assert_eq!(client.hardware.page(0, VA + PAGE).unwrap().access, access(false, false));
}

#[test]
fn range_of_several_memories_is_mapped_in_order() {
    let client = ready();
    let flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
    let mut args = client.alloc_args(0, VA + 0x10_0000, 2 * PAGE, flags);
    args.mmap_offset = VA + PAGE;
    let fds = Fds::of_pages(vec![new(2 * PAGE)]);
    client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &fds).unwrap();
    client.map(args.handle, 0).unwrap();
    let pages = vec![new(PAGE), UserPages::Of { handle: args.handle, offset: 0, bytes: 2 * PAGE }, new(PAGE)];
    client.svm(SET, (VA, 4 * PAGE), &mut [(ACCESS, client.id(0))], pages).unwrap();
    let of_object = client.hardware.page(0, VA + 0x10_1000).unwrap();
    assert_eq!(client.hardware.page(0, VA + 2 * PAGE), Some(of_object));
    let ends = [VA, VA + 3 * PAGE].map(|va| client.hardware.page(0, va).unwrap());
    assert!(ends[0].memory != ends[1].memory && ends.iter().all(|end| end.offset == 0));
}

#[test]
fn hardware_that_refuses_a_mapping_leaves_everything_as_it_was() {
    let client = ready();
    set(&client, VA, 1, &[(GRANULARITY, 3)], unchanged(PAGE)).unwrap();
    client.hardware.refuse_map.store(true, Ordering::Relaxed);
    let refused = set(&client, VA, 2, &[(ACCESS, client.id(0)), (GRANULARITY, 5)], new(2 * PAGE));
    assert_eq!(refused, Err(Errno::ENOMEM));
    client.hardware.refuse_map.store(false, Ordering::Relaxed);
    assert_eq!(get(&client, VA, 1, &[(GRANULARITY, 0)]), Ok(vec![(GRANULARITY, 3)]));
    assert_eq!(client.ledger.used(Resource::System), PAGE);
    give(&client, VA, 2, 0);
}

#[test]
fn ranges_count_as_system_memory_until_the_client_unmaps_them() {
    let client = ready();
    give(&client, VA, 4, 0);
    give(&client, VA + 2 * PAGE, 4, 0);
    assert_eq!(client.ledger.used(Resource::System), 6 * PAGE);
    client.process.svm_unmapped(VA + PAGE, 2 * PAGE).unwrap();
    assert_eq!(client.ledger.used(Resource::System), 4 * PAGE);
    client.process.svm_unmapped(VA, 100 * PAGE).unwrap();
    assert_eq!(client.ledger.used(Resource::System), 0);
    assert_eq!(client.svm(SET, (VA, 1 << 40), &mut [], vec![unchanged(1 << 40)]), Err(Errno::ENOMEM));
}

#[test]
fn range_that_the_client_unmapped_is_as_if_never_set() {
    let client = ready();
    let gpu = client.id(0);
    set(&client, VA, 3, &[(ACCESS, gpu), (GRANULARITY, 3)], new(3 * PAGE)).unwrap();
    client.process.svm_unmapped(VA + PAGE, PAGE).unwrap();
    assert_eq!(client.hardware.page(0, VA + PAGE), None);
    assert_eq!(client.hardware.page(0, VA + 2 * PAGE).unwrap().offset, 2 * PAGE);
    assert_eq!(
        get(&client, VA + PAGE, 1, &[(GRANULARITY, 0), (ACCESS, gpu)]),
        Ok(vec![(GRANULARITY, 9), (NO_ACCESS, gpu)])
    );
    client.alloc(0, VA + PAGE, PAGE, GTT).unwrap();
    for (start, bytes) in [(VA + 1, PAGE), (VA, 1), (u64::MAX, u64::MAX), (VA, u64::MAX - 0xfff)] {
        assert_eq!(client.process.svm_unmapped(start, bytes), Err(Errno::EINVAL));
    }
    client.process.svm_unmapped(VA, 0).unwrap();
    assert!(client.hardware.page(0, VA).is_some());
}

/// The arguments of a queue whose save area is a range that GPU 0 may access, with these flags; and the area's bytes.
pub fn queue_with_range(client: &Client, base: u64, flags: u32) -> (kfd_ioctl_create_queue_args, u64) {
    let parts = client.queue_parts(0, base);
    client.unmap(parts.cwsr, 0).unwrap();
    let bytes = client.gpus[0].geometry().total_bytes;
    let area = parts.args.ctx_save_restore_address;
    set(client, area, bytes / PAGE, &[(SET_FLAGS, flags), (ACCESS, client.id(0))], new(bytes)).unwrap();
    (parts.args, bytes)
}

#[test]
fn save_area_may_be_ranges_that_are_always_mapped() {
    let client = ready();
    let (mut args, bytes) = queue_with_range(&client, BASE, 0);
    let area = args.ctx_save_restore_address;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL), "not always mapped");
    let always = [(SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED)];
    set(&client, area, bytes / PAGE - 1, &always, unchanged(bytes - PAGE)).unwrap();
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL), "the last page is not");
    set(&client, area, bytes / PAGE, &always, unchanged(bytes)).unwrap();
    client.create(&mut args).unwrap();
    client.process.svm_unmapped(area + bytes - PAGE, PAGE).unwrap();
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL), "the last page is gone");
}

#[test]
fn save_area_must_be_accessible_to_the_queues_own_gpu() {
    let client = ready();
    let (mut args, bytes) = queue_with_range(&client, BASE, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED);
    let other = [(NO_ACCESS, client.id(0)), (ACCESS, client.id(1))];
    set(&client, args.ctx_save_restore_address, bytes / PAGE, &other, unchanged(bytes)).unwrap();
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
}

#[test]
fn save_area_stays_mapped_while_its_queue_lives() {
    let client = ready();
    let (mut args, bytes) = queue_with_range(&client, BASE, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED);
    let queue = client.create(&mut args).unwrap();
    let area = args.ctx_save_restore_address;
    let none = [(NO_ACCESS, client.id(0))];
    client.hardware.take();
    set(&client, area, bytes / PAGE, &none, unchanged(bytes)).unwrap();
    assert_eq!(client.hardware.take(), []);
    client.destroy(queue).unwrap();
    set(&client, area, bytes / PAGE, &none, unchanged(bytes)).unwrap();
    assert_eq!(client.hardware.take().last(), Some(&harness::Step::Unmap { gpu: 0, va: area, bytes }));
}

#[test]
fn queues_whose_save_area_was_unmapped_do_not_run_again() {
    let client = ready();
    let (mut args, _) = queue_with_range(&client, BASE, KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED);
    let queue = client.create(&mut args).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 1);
    client.process.svm_unmapped(args.ctx_save_restore_address, PAGE).unwrap();
    assert_eq!(client.hardware.running.lock().len(), 0);
    client.destroy(queue).unwrap();
}

/// Pages of the model below.
const PAGES: u64 = 8;

/// A step of a client, over some pages.
#[derive(Clone, Debug)]
enum Step {
    Access { pages: Range<u64>, gpu: usize, has: bool },
    ReadOnly { pages: Range<u64>, set: bool },
    Unmap { pages: Range<u64> },
}

fn step() -> impl Strategy<Value = Step> {
    let pages = || (0..PAGES, 1..=PAGES).prop_map(|(from, count)| from..(from + count).min(PAGES));
    prop_oneof![
        4 => (pages(), 0..2usize, any::<bool>()).prop_map(|(pages, gpu, has)| Step::Access { pages, gpu, has }),
        1 => (pages(), any::<bool>()).prop_map(|(pages, set)| Step::ReadOnly { pages, set }),
        2 => pages().prop_map(|pages| Step::Unmap { pages }),
    ]
}

/// Of a page: which GPUs may access it, and whether only to read.
type Page = ([bool; 2], bool);

/// What a client lends for a step: new memory for pages that no GPU can access yet, if one will.
fn lent(model: &[Page], pages: &Range<u64>, gains: bool) -> Vec<UserPages> {
    let one = |page: u64| match model[page as usize].0 {
        [false, false] if gains => new(PAGE),
        _ => unchanged(PAGE),
    };
    pages.clone().map(one).collect()
}

proptest! {
    #[test]
    fn gpus_have_mapped_exactly_what_they_may_access(steps in prop::collection::vec(step(), 1..40)) {
        let client = ready();
        let mut model = vec![Page::default(); PAGES as usize];
        for step in steps {
            let (pages, attribute, gains) = match &step {
                Step::Access { pages, gpu, has } => {
                    (pages, (if *has { ACCESS } else { NO_ACCESS }, client.id(*gpu)), *has)
                }
                Step::ReadOnly { pages, set } => {
                    (pages, (if *set { SET_FLAGS } else { CLEAR_FLAGS }, KFD_IOCTL_SVM_FLAG_GPU_RO), false)
                }
                Step::Unmap { pages } => (pages, (0, 0), false),
            };
            let (start, bytes) = (VA + pages.start * PAGE, (pages.end - pages.start) * PAGE);
            let touched = pages.start as usize..pages.end as usize;
            if let Step::Unmap { .. } = step {
                client.process.svm_unmapped(start, bytes).unwrap();
                model[touched].fill(Page::default());
            } else {
                let memory = lent(&model, pages, gains);
                client.svm(SET, (start, bytes), &mut [attribute], memory).unwrap();
                for page in &mut model[touched] {
                    match step {
                        Step::Access { gpu, has, .. } => page.0[gpu] = has,
                        Step::ReadOnly { set, .. } => page.1 = set,
                        Step::Unmap { .. } => {}
                    }
                }
            }
            for (page, (users, read_only)) in (0..).zip(&model) {
                let entries = [0, 1].map(|gpu| client.hardware.page(gpu, VA + page * PAGE));
                let expected = users.map(|has| has.then_some(access(!read_only, false)));
                prop_assert_eq!(entries.map(|entry| entry.map(|entry| entry.access)), expected, "page {}", page);
                if let [Some(first), Some(second)] = entries {
                    prop_assert_eq!(first, second);
                }
            }
        }
        client.process.svm_unmapped(VA, PAGES * PAGE).unwrap();
        prop_assert_eq!(client.ledger.used(Resource::System), 0);
    }
}
