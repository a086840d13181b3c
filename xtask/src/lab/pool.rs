//! Packages of kernels that Debian's mirrors still carry, but no longer list: the headers of all but the newest lines, and
//! the modules of some with their lists (linux-base). Without a list nobody signs for them, so each is known by its SHA-256
//! (of the files as the mirrors had them on 2026-11-29).

/// Where they are on a mirror.
const FOLDER: &str = "pool/main/l/linux";

/// Version, file name, SHA-256.
const FILES: &[(&str, &str, &str)] = &[
    (
        "6.16.12",
        "linux-headers-6.16.12+deb13-amd64_6.16.12-1~bpo13+1_amd64.deb",
        "8a3e5e2137e8e53b3aab92d9db4f7a45d914eafe130be9c02a97e08cc73197e2",
    ),
    (
        "6.16.12",
        "linux-headers-6.16.12+deb13-common_6.16.12-1~bpo13+1_all.deb",
        "7d2a64d3ce22f277a2111b8ca6757dbf4a1d70eb320b7f50bcb5e88f7bdd8397",
    ),
    (
        "6.16.12",
        "linux-kbuild-6.16.12+deb13_6.16.12-1~bpo13+1_amd64.deb",
        "a9e0f7018d90ad26b7070b0462dd02cc1fcfdbe1f7e4aa9a55fb02dacea828ae",
    ),
    (
        "6.17.13",
        "linux-headers-6.17.13+deb13-amd64_6.17.13-1~bpo13+1_amd64.deb",
        "752c712768b86b7bbfca7fd94d6b954438b956065ab728db42d71cfae244c762",
    ),
    (
        "6.17.13",
        "linux-headers-6.17.13+deb13-common_6.17.13-1~bpo13+1_all.deb",
        "85998501828bfb1d3d517ff0e698f8eada209b7642f989fd7e5d47e1912123ab",
    ),
    (
        "6.17.13",
        "linux-kbuild-6.17.13+deb13_6.17.13-1~bpo13+1_amd64.deb",
        "2b234e8c35bad4bbbd3d0105f4f5350642df17c484d5863cecd78878baa39c3f",
    ),
    (
        "6.18.15",
        "linux-headers-6.18.15+deb13-amd64_6.18.15-1~bpo13+1_amd64.deb",
        "1b19c975adf29e89c4cb2680e862db89b787fc5144a638b001854b075b4cc255",
    ),
    (
        "6.18.15",
        "linux-headers-6.18.15+deb13-common_6.18.15-1~bpo13+1_all.deb",
        "a54ed9b3be5247fe2e003423e067cb8e8b06e4a44a09459b85cfec0afbcbd5ef",
    ),
    (
        "6.18.15",
        "linux-kbuild-6.18.15+deb13_6.18.15-1~bpo13+1_amd64.deb",
        "5e64129020cdb5effd6ed3895ca89608ef17bcf643eedfc8013dad89bab70a02",
    ),
    (
        "6.19.14",
        "linux-base-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
        "f12c1bdb44f0d820e6b740638cf88dfc570854938a250bfe58376250fe337590",
    ),
    (
        "6.19.14",
        "linux-headers-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
        "f98508adc1e5e0bad8ee8941fdd46f9d9746528bafbecd6ae1e795260372832e",
    ),
    (
        "6.19.14",
        "linux-headers-6.19.14+deb13-common_6.19.14-1~bpo13+1_all.deb",
        "708c2e462fc44467137271f7086513db77d5a144ea58b5140d86cefe0cf2097f",
    ),
    (
        "6.19.14",
        "linux-kbuild-6.19.14+deb13_6.19.14-1~bpo13+1_amd64.deb",
        "663019531687941c52f67e083d5564155998a2d4978e90ceff40f84af2687389",
    ),
    (
        "6.19.14",
        "linux-modules-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
        "bea4d9513e8055d8f98644ef866dc30b70568b46b63843197404399d5e47b8ab",
    ),
    (
        "7.0.13",
        "linux-base-7.0.13+deb13-amd64_7.0.13-1~bpo13+1_amd64.deb",
        "3771568c09e1265030da34c0b998fb81d92b933667db0ec5d018c158a86f3706",
    ),
    (
        "7.0.13",
        "linux-headers-7.0.13+deb13-amd64_7.0.13-1~bpo13+1_amd64.deb",
        "5010f3c012ca6f9705bab59dbd47006422753be0aad2b016b96377841009b38d",
    ),
    (
        "7.0.13",
        "linux-headers-7.0.13+deb13-common_7.0.13-1~bpo13+1_all.deb",
        "792c522ae61a5a5a1c78c161b80fbd61fe7f4e49ff3de2363e39ac77d7518616",
    ),
    (
        "7.0.13",
        "linux-kbuild-7.0.13+deb13_7.0.13-1~bpo13+1_amd64.deb",
        "7e8b3b17d5c6d3e232e0b31c18fd781ca21f79e45eca5afd5644c55d02c15429",
    ),
    (
        "7.0.13",
        "linux-modules-7.0.13+deb13-amd64_7.0.13-1~bpo13+1_amd64.deb",
        "787ac652f5fac4805092ed951a6ae617d448684f5f399659f0e5dcfa544fabf4",
    ),
    (
        "7.1.13",
        "linux-base-7.1.13+deb13-amd64_7.1.13-1~bpo13+1_amd64.deb",
        "7676c768de8ac2e8936e402f72c577adff64080c099a5dea246112c7ae7710b2",
    ),
    (
        "7.1.13",
        "linux-headers-7.1.13+deb13-amd64_7.1.13-1~bpo13+1_amd64.deb",
        "bd2d714da582917fa369e96a72dfaa8c724ea466e63c6e0cae79427b270c34f0",
    ),
    (
        "7.1.13",
        "linux-headers-7.1.13+deb13-common_7.1.13-1~bpo13+1_all.deb",
        "99ee0b9248757cb9fc34e808f864296fce49fb66db5c37ee8b828babcc704572",
    ),
    (
        "7.1.13",
        "linux-kbuild-7.1.13+deb13_7.1.13-1~bpo13+1_amd64.deb",
        "85338bfdeb9c173262c65b0cb2f9e7d82f544aefbbdda4643b4a473cb22fbb74",
    ),
    (
        "7.1.13",
        "linux-modules-7.1.13+deb13-amd64_7.1.13-1~bpo13+1_amd64.deb",
        "613b3e774eec036688ea3b3693d33de4ccb8d721ae10ab8697eb2854a99aadc8",
    ),
];

/// The files of a kernel, each with its SHA-256.
pub(crate) fn files(version: &str) -> Vec<(String, &'static str)> {
    let own = FILES.iter().filter(|(of, _, _)| *of == version);
    own.map(|(_, name, sum)| (format!("{FOLDER}/{name}"), *sum))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_not_listed_has_its_headers_here() {
        let names: Vec<String> = files("7.1.13").into_iter().map(|(path, _)| path).collect();
        for part in [
            "linux-headers-7.1.13+deb13-amd64_",
            "-common_",
            "linux-kbuild-",
            "linux-modules-",
        ] {
            assert!(names.iter().any(|name| name.contains(part)), "{part}: {names:?}");
        }
        assert!(
            FILES
                .iter()
                .all(|(version, name, sum)| name.contains(version) && sum.len() == 64)
        );
        assert!(files("7.3.4").is_empty());
        // The lists of modules are not where the modules are.
        let versions = |part: &str| {
            let own = FILES.iter().filter(|(_, name, _)| name.starts_with(part));
            own.map(|(version, ..)| *version).collect::<Vec<_>>()
        };
        assert_eq!(versions("linux-base-"), versions("linux-modules-"));
    }
}
