// SPDX-License-Identifier: MIT OR Apache-2.0
//! CLEAR and REPLACE cut mappings. After any sequence of calls the page tables equal those of a simple model.

use proptest::prelude::*;

use super::*;
use crate::hardware::PageAccess;

const PAGES: usize = 12;

#[test]
fn clear_cuts_the_mappings_at_its_ends() {
    let space = Space::new();
    space.map(0, 4, 0).unwrap();
    space.map(5, 3, 4).unwrap();
    space.client.hardware.take();
    space.clear(2, 4).unwrap();
    assert_eq!(space.seen(), [0, 1, 9, 9, 9, 9, 5, 6, 9, 9].map(|page| (page != 9).then_some(page)));
    let removed = [(2, 2), (5, 1)];
    let removed =
        removed.map(|(page, pages)| Step::Unmap { gpu: 0, va: VA + page * PAGE, bytes: pages * PAGE });
    assert_eq!(space.client.hardware.take(), removed, "the rest was never touched");
    assert_eq!(space.unmap(5), Err(Errno::ENOENT));
    space.unmap(6).unwrap();
    space.clear(0, 10).unwrap();
    assert_eq!(space.seen(), [None; 10]);
    space.clear(0, 10).unwrap();
}

#[test]
fn replace_with_the_same_pages_only_changes_permissions() {
    let space = Space::new();
    space.map(0, 4, 2).unwrap();
    space.client.hardware.take();
    let args = va_args(AMDGPU_VA_OP_REPLACE, space.handle, 1, 2, 3);
    space.va(drm_amdgpu_gem_va { flags: READ, ..args }).unwrap();
    let access = PageAccess { read: true, write: false, execute: false };
    let protect = Step::Protect { gpu: 0, va: VA + PAGE, bytes: 2 * PAGE, access };
    assert_eq!(space.client.hardware.take(), [protect]);
    assert_eq!(space.unmap(0), Ok(0), "what is in front of it is a mapping of its own");
    assert_eq!(space.unmap(1), Ok(0));
    assert_eq!(space.unmap(3), Ok(0));
    assert_eq!(space.seen(), [None; 10]);
}

#[test]
fn replace_with_other_pages_maps_them() {
    let space = Space::new();
    space.map(0, 4, 0).unwrap();
    space.va(va_args(AMDGPU_VA_OP_REPLACE, space.handle, 2, 4, 4)).unwrap();
    assert_eq!(space.seen(), [0, 1, 4, 5, 6, 7, 9, 9, 9, 9].map(|page| (page != 9).then_some(page)));
}

/// What is mapped at a page: the object, the page of the object, the flags, and where the mapping starts.
type Shown = Option<(usize, u64, u32, usize)>;

#[derive(Clone, Debug)]
struct Act {
    operation: u32,
    object: usize,
    page: usize,
    pages: usize,
    offset: u64,
    flags: u32,
}

fn act() -> impl Strategy<Value = Act> {
    let flags = prop::sample::select(vec![READ, READ_WRITE, READ | AMDGPU_VM_PAGE_EXECUTABLE]);
    (1u32..=4, 0usize..2, 0..PAGES, 1usize..5, 0u64..8, flags).prop_map(
        |(operation, object, page, pages, offset, flags)| {
            // Half of the ranges map the pages that the object would have there if it began at the first page.
            let offset = if offset < 4 { page as u64 } else { offset - 4 };
            Act { operation, object, page, pages: pages.min(PAGES - page), offset, flags }
        },
    )
}

/// The model of the kernel, page by page. Answers whether the kernel accepts the call.
fn model(shown: &mut [Shown], act: &Act, bytes: u64) -> Result<(), Errno> {
    let range = act.page..act.page + act.pages;
    let maps = matches!(act.operation, AMDGPU_VA_OP_MAP | AMDGPU_VA_OP_REPLACE);
    if maps && act.offset + act.pages as u64 > bytes / PAGE {
        return Err(Errno::EINVAL);
    }
    if act.operation == AMDGPU_VA_OP_UNMAP {
        let starts = |page: &Shown| {
            page.is_some_and(|(object, _, _, start)| (object, start) == (act.object, act.page))
        };
        if !starts(&shown[act.page]) {
            return Err(Errno::ENOENT);
        }
        shown.iter_mut().filter(|page| starts(page)).for_each(|page| *page = None);
        return Ok(());
    }
    if act.operation == AMDGPU_VA_OP_MAP && shown[range.clone()].iter().any(Option::is_some) {
        return Err(Errno::EINVAL);
    }
    // A mapping that continues behind the range starts there from now on.
    if let Some(Some((.., start))) = shown.get(range.end).copied()
        && start < range.end
    {
        for page in shown[range.end..].iter_mut().flatten().filter(|page| page.3 == start) {
            page.3 = range.end;
        }
    }
    for (step, page) in shown[range].iter_mut().enumerate() {
        *page = maps.then_some((act.object, act.offset + step as u64, act.flags, act.page));
    }
    Ok(())
}

proptest! {
    #[test]
    fn page_tables_are_what_the_model_says(acts in prop::collection::vec(act(), 1..60)) {
        let space = Space::new();
        let second = export_of(&space, 6);
        let handles = [space.handle, prime_import(&space.client, &space.file, &second).unwrap()];
        let objects = [&space.dmabuf, &second].map(|fd| crate::driver::memfd::identity(fd.as_fd()).unwrap());
        let mut shown: Vec<Shown> = vec![None; PAGES];
        for act in &acts {
            let args = va_args(act.operation, handles[act.object], act.page as u64, act.pages as u64, act.offset);
            let answer = space.va(drm_amdgpu_gem_va { flags: act.flags, ..args }).map(drop);
            prop_assert_eq!(answer, model(&mut shown, act, [8, 6][act.object] * PAGE), "{:?}", act);
            for (page, wanted) in shown.iter().enumerate() {
                let found = space.client.hardware.page(0, VA + page as u64 * PAGE);
                let found = found.map(|entry| (entry.memory, entry.offset / PAGE, entry.access));
                let wanted = wanted.map(|(object, offset, flags, _)| {
                    let has = |flag| flags & flag != 0;
                    let (write, execute) = (has(AMDGPU_VM_PAGE_WRITEABLE), has(AMDGPU_VM_PAGE_EXECUTABLE));
                    (objects[object], offset, PageAccess { read: true, write, execute })
                });
                prop_assert_eq!(found, wanted, "page {} after {:?}", page, act);
            }
        }
        for handle in handles {
            close(&space.client, &space.file, handle).unwrap();
        }
        prop_assert!(space.client.hardware.pages.lock().is_empty());
    }

    #[test]
    fn no_render_node_command_panics(
        calls in prop::collection::vec((0u8..=255, 0u16..80, prop::collection::vec(any::<u8>(), 80)), 1..40),
    ) {
        let space = Space::new();
        for (nr, size, bytes) in calls {
            let mut arg = bytes;
            let cmd = 0xc000_6400 | u32::from(size) << 16 | u32::from(nr);
            // Any answer is right here.
            let (memory, fds) = (Memory::with(ARRAY, &[0; 64]), Fds::field(FD, &space.dmabuf));
            let _ = space.client.process.ioctl(&space.file, cmd, &mut arg[..usize::from(size)], &memory, &fds);
        }
    }
}

fn export_of(space: &Space, pages: u64) -> OwnedFd {
    let buffer = space.client.alloc(0, 0, pages * PAGE, GTT).unwrap();
    super::super::sharing::export(&space.client, buffer).unwrap()
}
