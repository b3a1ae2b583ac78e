// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freezes kernels after every instruction, and at random points, and compares their results with an uninterrupted run.
//!
//! Each freeze goes through the save area's bytes, so that state which the layout does not contain is lost.

mod common;

use common::Device;
use queues::save_area::{read_waves, write_waves};
use softgpu_kernels::{Arguments, Array, Launched, Random};
use softgpu_waves::{Control, GridState, Launch, Outcome};

const CONTROL_STACK: u32 = 0xa000;
const SAVE_BYTES: u32 = 0x0100_0000;

/// Saves a wave to the bytes of a save area and restores it from them.
fn through_bytes(state: &GridState, area: &mut [u8]) -> Box<GridState> {
    write_waves(area, CONTROL_STACK, SAVE_BYTES, &state.waves).expect("the waves fit");
    let waves = read_waves(area).expect("the area is whole");
    assert_eq!(waves, state.waves);
    Box::new(GridState { next_workgroup: state.next_workgroup, waves })
}

/// Runs `launch`, frozen once after `instructions` instructions. Returns whether it got so far.
fn frozen_after(d: &Device, launch: &Launch, instructions: u64, area: &mut [u8]) -> bool {
    let control = Control::new();
    control.pause_after(instructions);
    match d.run(launch, &control, None) {
        Outcome::Completed => false,
        Outcome::Paused(state) => {
            let state = through_bytes(&state, area);
            match d.run(launch, &Control::new(), Some(state)) {
                Outcome::Completed => true,
                other => panic!("behind {instructions}: {other:?}"),
            }
        }
        other => panic!("behind {instructions}: {other:?}"),
    }
}

/// One kernel: how it is launched on a buffer of inputs that it changes.
struct Case {
    name: &'static str,
    grid: [u32; 3],
    workgroup: [u16; 3],
    words: usize,
    last: u32,
}

impl Case {
    fn data(&self) -> Vec<u32> {
        let mut random = Random(self.words as u64 + u64::from(self.last));
        (0..self.words).map(|_| random.u32() >> 8).collect()
    }

    fn launch(&self, d: &Device, data: &Array<u32>) -> Launched {
        let arguments = Arguments::new().u64(data.address()).u32(self.last);
        d.launch(self.name, self.grid, self.workgroup, arguments.bytes())
    }

    fn whole(&self, d: &Device) -> (Vec<u32>, u64) {
        let data = d.buffer(&self.data());
        let instructions = d.complete(&self.launch(d, &data));
        (data.get(), instructions)
    }

    /// Freezes after instruction `at`; with steps of one, after every instruction.
    fn check(&self, d: &Device, points: impl Iterator<Item = u64>, area: &mut [u8]) -> u64 {
        let (whole, _) = self.whole(d);
        let mut frozen = 0;
        for at in points {
            let data = d.buffer(&self.data());
            frozen += u64::from(frozen_after(d, &self.launch(d, &data), at, area));
            assert_eq!(data.get(), whole, "{} frozen behind instruction {at}", self.name);
        }
        frozen
    }
}

/// Small kernels of every kind that has state outside plain registers.
const SMALL: [Case; 7] = [
    Case { name: "frozen_lds", grid: [96, 1, 1], workgroup: [96, 1, 1], words: 96, last: 3 },
    Case { name: "frozen_divergent", grid: [64, 1, 1], workgroup: [32, 1, 1], words: 64, last: 7 },
    Case { name: "frozen_scratch", grid: [32, 1, 1], workgroup: [32, 1, 1], words: 32, last: 5 },
    Case { name: "frozen_spin", grid: [64, 1, 1], workgroup: [64, 1, 1], words: 68, last: 4 },
    Case { name: "frozen_sleep", grid: [32, 1, 1], workgroup: [32, 1, 1], words: 32, last: 3 },
    Case { name: "frozen_scalar", grid: [1, 1, 1], workgroup: [1, 1, 1], words: 16, last: 9 },
    Case { name: "frozen_wave64", grid: [128, 1, 1], workgroup: [128, 1, 1], words: 128, last: 4 },
];

fn device() -> Device {
    let mut device = Device::with_kernels(1);
    device.load(&common::compile(include_str!("frozen.c"), &[]));
    device.load(&common::compile(include_str!("frozen64.c"), &["-mwavefrontsize64"]));
    device
}

fn area() -> Vec<u8> {
    vec![0; SAVE_BYTES as usize]
}

#[test]
fn every_boundary_of_small_kernels_is_a_place_to_stop() {
    let (d, mut area) = (device(), area());
    for case in &SMALL {
        let (_, instructions) = case.whole(&d);
        let frozen = case.check(&d, 0..instructions, &mut area);
        // Waits and hints change no state and cannot be frozen at; more than half of the instructions are others.
        assert!(frozen > 20 && 2 * frozen > instructions, "{}: {frozen} of {instructions}", case.name);
    }
}

/// How many random points: STASIS_FREEZE_POINTS, or enough for a minute at most.
fn points() -> u64 {
    std::env::var("STASIS_FREEZE_POINTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

#[test]
fn random_points_of_larger_kernels_are_places_to_stop() {
    let cases = [
        Case { name: "frozen_lds", grid: [512, 1, 1], workgroup: [128, 1, 1], words: 512, last: 12 },
        Case { name: "frozen_divergent", grid: [320, 1, 1], workgroup: [64, 1, 1], words: 320, last: 40 },
        Case { name: "frozen_scratch", grid: [160, 1, 1], workgroup: [32, 1, 1], words: 160, last: 20 },
        Case { name: "frozen_wave64", grid: [512, 1, 1], workgroup: [256, 1, 1], words: 512, last: 9 },
    ];
    let (d, mut area, mut random) = (device(), area(), Random(2026));
    let each = points() / cases.len() as u64;
    for case in &cases {
        let (_, instructions) = case.whole(&d);
        let points = (0..each).map(|_| u64::from(random.u32()) % instructions);
        let frozen = case.check(&d, points, &mut area);
        assert!(frozen * 2 > each, "{}: {frozen} of {each}", case.name);
    }
}

#[test]
fn frozen_again_and_again_it_still_ends() {
    let (d, mut area) = (device(), area());
    for case in &SMALL {
        let (whole, _) = case.whole(&d);
        let data = d.buffer(&case.data());
        let launch = case.launch(&d, &data);
        let mut state = None;
        let mut freezes = 0;
        loop {
            let control = Control::new();
            control.pause_after(7);
            match d.run(&launch, &control, state.take()) {
                Outcome::Completed => break,
                Outcome::Paused(paused) => state = Some(through_bytes(&paused, &mut area)),
                other => panic!("{}: {other:?}", case.name),
            }
            freezes += 1;
        }
        assert!(freezes > 3, "{} was frozen {freezes} times", case.name);
        assert_eq!(data.get(), whole, "{}", case.name);
    }
}

#[test]
fn command_given_while_counting_wins_and_a_deaf_control_hears_nothing() {
    let d = device();
    let case = &SMALL[1];
    let (whole, instructions) = case.whole(&d);
    let data = d.buffer(&case.data());
    let control = Control::new();
    control.pause_after(u64::MAX);
    control.pause();
    assert!(matches!(d.run(&case.launch(&d, &data), &control, None), Outcome::Paused(_)));

    let data = d.buffer(&case.data());
    let deaf = Control::uninterruptible();
    assert!(matches!(d.run(&case.launch(&d, &data), &deaf, None), Outcome::Completed));
    assert_eq!(data.get(), whole);
    assert!(instructions > 0);
}
