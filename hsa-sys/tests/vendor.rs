// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loader against libraries made for the test, and against the vendor's where it is installed.

use hsa_sys::DeviceType;
use hsa_sys::Loader;
use hsa_sys::Reason;
use hsa_sys::SearchOptions;
use hsa_sys::Symbols;
use hsa_sys::VendorError;
use hsa_sys::VendorRuntime;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// Compiles a library from `tests/fake.c` under the vendor's name.
fn fake(dir: &Path, defines: &[&str]) -> PathBuf {
    let library = dir.join("libhsa-runtime64.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror"])
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(source)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

fn explicit(path: &Path) -> SearchOptions {
    SearchOptions { explicit: Some(path.to_path_buf()), environment: None }
}

#[test]
fn agents_are_described_and_the_runtime_is_shut_down() {
    let dir = tempfile::tempdir().unwrap();
    let library = fake(dir.path(), &[]);
    let runtime = VendorRuntime::open(&explicit(&library)).unwrap();
    assert_eq!(runtime.loader().path(), library);
    // A second round works only if the first one shut the runtime down.
    for _ in 0..2 {
        let agents = runtime.agents().unwrap();
        assert_eq!(agents.len(), 2);
        assert_eq!(agents[0].device_type, DeviceType::Cpu);
        assert_eq!((agents[0].name.as_str(), agents[0].isas.len()), ("Fake CPU", 0));
        assert_eq!(agents[1].device_type, DeviceType::Gpu);
        assert_eq!(agents[1].name, "gfx1100");
        assert_eq!(agents[1].product, "Fake GPU with a name of exactly sixty-four bytes, and no NUL end");
        assert_eq!(agents[1].vendor, "AMD");
        assert_eq!(agents[1].uuid, "GPU-0123456789abcdef");
        assert_eq!(agents[1].isas, ["amdgcn-amd-amdhsa--gfx1100"]);
    }
}

#[test]
fn directory_in_the_environment_is_searched_for_the_soname() {
    let dir = tempfile::tempdir().unwrap();
    let library = fake(dir.path(), &["NO_ISAS"]);
    let options = SearchOptions {
        explicit: Some(PathBuf::from("/nowhere/libhsa.so")),
        environment: Some(dir.path().to_path_buf()),
    };
    let runtime = VendorRuntime::open(&options).unwrap();
    assert_eq!(runtime.loader().path(), library);
    assert_eq!(runtime.loader().skipped().len(), 1);
    // The optional symbols are missing: agents are still listed, without instruction sets.
    assert!(runtime.loader().symbols().hsa_agent_iterate_isas.is_none());
    assert_eq!(runtime.agents().unwrap()[1].isas, Vec::<String>::new());
}

#[test]
fn library_without_required_symbols_is_skipped_naming_them() {
    let dir = tempfile::tempdir().unwrap();
    let library = fake(dir.path(), &["NO_ITERATE"]);
    let attempts = match Loader::open(&explicit(&library)) {
        Ok(loader) => loader.skipped().iter().map(|a| (a.path.clone(), a.to_string())).collect::<Vec<_>>(),
        Err(error) => error.attempts.iter().map(|a| (a.path.clone(), a.to_string())).collect(),
    };
    assert_eq!(attempts[0].0, library);
    assert!(attempts[0].1.contains("hsa_iterate_agents") && !attempts[0].1.contains("hsa_init"));
    assert!(Symbols::REQUIRED.contains(&"hsa_iterate_agents"));
}

#[test]
fn missing_library_is_an_attempt_with_the_linkers_reason() {
    let path = Path::new("/nowhere/libhsa.so");
    let (attempts, whole) = match Loader::open(&explicit(path)) {
        Ok(loader) => (loader.skipped().len(), String::new()),
        Err(error) => {
            assert!(error.attempts.iter().all(|attempt| matches!(attempt.reason, Reason::Load(_))));
            (error.attempts.len(), error.to_string())
        }
    };
    assert!(attempts == 1 || attempts == 3, "{whole}");
    if attempts == 3 {
        assert!(whole.contains("/nowhere/libhsa.so") && whole.contains("libhsa-runtime64.so.1"), "{whole}");
    }
}

#[test]
fn failing_init_names_symbol_and_status() {
    let dir = tempfile::tempdir().unwrap();
    let library = fake(dir.path(), &["INIT_STATUS=0x1008"]);
    let error = VendorRuntime::open(&explicit(&library)).unwrap().agents().unwrap_err();
    let VendorError::Call { symbol, status, text } = &error else { panic!("{error}") };
    assert_eq!((*symbol, status.0, text.as_str()), ("hsa_init", 0x1008, "fake text"));
    assert!(error.to_string().contains("HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)"), "{error}");
}

/// Debian's library, if it is installed. With a GPU it lists it; without one it says why not.
#[test]
fn installed_vendor_library_answers_or_names_its_status() {
    let runtime = match VendorRuntime::open(&SearchOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ignored: no vendor library is installed ({error})");
            return;
        }
    };
    match runtime.agents() {
        Ok(agents) => assert!(!agents.is_empty()),
        Err(VendorError::Call { symbol: "hsa_init", status, .. }) => {
            assert_eq!(status.name(), Some("HSA_STATUS_ERROR_OUT_OF_RESOURCES"));
        }
        Err(error) => panic!("{error}"),
    }
}
