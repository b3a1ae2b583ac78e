// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same with the software device, whose topology is changed between checkpoint and restore.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use kfd::topology::SysfsSource;
use kfd::transport::CloseError;
use kfd::transport::soft::SoftTransport;
use kfd::{File, OpenError};

use super::*;

/// A software device whose topology shows one line otherwise.
#[derive(Debug)]
struct Disguised {
    soft: SoftTransport,
    line: Mutex<Option<(&'static str, &'static str)>>,
}

impl SysfsSource for Disguised {
    fn read(&self, path: &str) -> io::Result<String> {
        let text = self.soft.read(path)?;
        Ok(match *self.line.lock() {
            Some((was, is)) if path == "nodes/1/properties" => {
                assert!(text.contains(was), "{text}");
                text.replace(was, is)
            }
            _ => text,
        })
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.soft.list(path)
    }
}

impl Transport for Disguised {
    fn name(&self) -> &str {
        self.soft.name()
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        self
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        self.soft.open(path)
    }

    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        self.soft.adopt(path, fd)
    }

    fn close(&self) -> Result<(), CloseError> {
        self.soft.close()
    }
}

struct Softgpud(Child);

impl Drop for Softgpud {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A softgpud of this test's own.
fn start() -> (Softgpud, Arc<Disguised>) {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().skip(1).take(3).map(|directory| directory.join("softgpud"));
    let program = program.into_iter().find(|path| path.is_file());
    let program =
        program.expect("no softgpud beside the test: cargo xtask test, or cargo build -p stasis-softgpu");
    let name = format!("stasis-admission-{}", std::process::id());
    let child = Command::new(program)
        .args(["serve", "--devices", "gfx1100", "--socket", &name])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = Softgpud(child);
    let deadline = Instant::now() + Duration::from_secs(60);
    let soft = loop {
        match SoftTransport::connect_socket(&name, &["gfx1100".to_owned()]) {
            Ok(soft) => break soft,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    (daemon, Arc::new(Disguised { soft, line: Mutex::new(None) }))
}

fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn software_device_that_changed_is_refused_and_taken_again_when_it_is_right() {
    let _alone = ALONE.lock();
    let without = sockets();
    let (_daemon, transport) = start();
    let runtime =
        Runtime::from_context(&crate::context::open::open(Arc::clone(&transport) as _, None).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let agent = runtime.agent(0).unwrap();
    let buffer = agent.vram().alloc(10_000).unwrap();
    let bytes: Vec<u8> = (0..10_000u32).map(|n| ((n * n) >> 5) as u8).collect();
    buffer.write(0, &bytes).unwrap();
    runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    assert_eq!(sockets(), without);
    let options = |checks| RestoreOptions {
        admission: Some(Admission { checks, ..Admission::default() }),
        ..RestoreOptions::default()
    };
    for (was, is, wanted) in [
        ("\nfw_version 2140\n", "\nfw_version 2139\n", "had fw_version 2140, here it has 2139"),
        ("\ndevice_id 29772\n", "\ndevice_id 29773\n", "had device_id 29772, here it has 29773"),
    ] {
        *transport.line.lock() = Some((was, is));
        let refusal = runtime.restore_with(&options(Checks::default())).unwrap_err().to_string();
        assert!(refusal.contains(wanted), "{refusal}");
        assert_eq!((runtime.state(), sockets()), (State::Checkpointed, without));
    }
    *transport.line.lock() = Some(("\nfw_version 2140\n", "\nfw_version 2139\n"));
    runtime.restore_with(&options(Checks::without(Switch::FwVersion))).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), bytes);
    // It remembers the firmware that is here now; then the first is back.
    runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    *transport.line.lock() = None;
    runtime.restore_with(&options(Checks::default())).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), bytes);
}
