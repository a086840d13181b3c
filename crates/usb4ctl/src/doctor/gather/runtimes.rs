//! NCCLs and RCCLs a job here might use.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::library;
use crate::doctor::facts::{Kind, Probe, Runtime, Variables, Version};

/// Where Python packages keep them: NVIDIA's package, and PyTorch's for ROCm.
const IN_PYTHON: [(Kind, &str); 2] = [
    (Kind::Nccl, "nvidia/nccl/lib/libnccl.so.2"),
    (Kind::Rccl, "torch/lib/librccl.so"),
];

/// All that are found, each once.
///
/// # Errors
///
/// When libraries cannot be tried.
pub(super) fn find(variables: &Variables) -> Result<Vec<Runtime>> {
    let mut places = vec![];
    if let Some(path) = variables.get("VLLM_NCCL_SO_PATH") {
        let kind = if path.contains("rccl") {
            Kind::Rccl
        } else {
            Kind::Nccl
        };
        places.push((kind, path.to_string(), "VLLM_NCCL_SO_PATH"));
    }
    for folder in python_path() {
        for (kind, file) in IN_PYTHON {
            let path = Path::new(&folder).join(file);
            if path.exists() {
                places.push((kind, path.to_string_lossy().into_owned(), "a package of python3"));
            }
        }
    }
    places.push((Kind::Nccl, "libnccl.so.2".into(), "the loader"));
    places.push((Kind::Rccl, "librccl.so.1".into(), "the loader"));
    let mut found: Vec<Runtime> = vec![];
    for (kind, name, by) in places {
        let Probe::Loaded(library) = library::in_a_child(&name)? else {
            continue;
        };
        let Some(version) = library.version else { continue };
        if found.iter().all(|one| one.path != library.path) {
            found.push(Runtime {
                kind,
                path: library.path,
                version: Version::from_code(version),
                by,
            });
        }
    }
    Ok(found)
}

/// Folders in which the `python3` of this environment looks for packages; none if there is no Python.
fn python_path() -> Vec<String> {
    let output = Command::new("python3")
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let said = output.map(|output| output.stdout).unwrap_or_default();
    let folders = String::from_utf8_lossy(&said);
    let folders = folders.lines().filter(|line| !line.is_empty());
    folders.map(str::to_string).collect()
}
