//! Tests of discovery on temporary folders.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use switchrail::{Discovery, PluginGroup, PluginState, ProblemCode, discover, discover_thoroughly};

fn write(path: PathBuf, contents: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

fn install(site: &Path, info: &str, metadata: &str, entry_points: &str) {
    write(site.join(info).join("METADATA"), metadata);
    if !entry_points.is_empty() {
        write(site.join(info).join("entry_points.txt"), entry_points);
    }
}

fn plugins(found: &Discovery) -> Vec<String> {
    found
        .plugins
        .iter()
        .map(|plugin| format!("{}={}", plugin.qualified_name(), plugin.target))
        .collect()
}

const ACME: &str = "[switchrail.plugins]\nacme = acme_gdn:register\n";

#[test]
fn a_plugin_has_its_origin() {
    let site = tempfile::tempdir().unwrap();
    let text =
        "[switchrail.plugins]\nAcme = acme.gdn : register [fast]\n[switchrail.platforms]\nnpu = acme:NPU\n";
    install(
        site.path(),
        "acme_gdn-1.2.dist-info",
        "Name: Acme.GDN\nVersion: 1.2+local\n",
        text,
    );
    let found = discover(&[site.path()]);
    let [general, platform] = &found.plugins[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (general.name.as_str(), general.group),
        ("Acme", PluginGroup::Plugins)
    );
    assert_eq!(general.target, "acme.gdn:register");
    assert_eq!(general.extras, ["fast"]);
    assert_eq!(general.state, PluginState::Discovered);
    assert_eq!(general.origin.distribution, "Acme.GDN");
    assert_eq!(general.origin.version.as_deref(), Some("1.2+local"));
    assert_eq!(general.origin.path, site.path().join("acme_gdn-1.2.dist-info"));
    assert_eq!(
        (platform.name.as_str(), platform.group),
        ("npu", PluginGroup::Platforms)
    );
    assert_eq!(found.packages().version("acme_GDN"), Some("1.2+local"));
    assert_eq!(found.problems, []);
}

#[test]
fn distributions_without_plugins_are_known_by_their_folder() {
    let site = tempfile::tempdir().unwrap();
    install(
        site.path(),
        "Typing_Extensions-4.12.0.dist-info",
        "Name: typing_extensions\nVersion: 4.12.0\n",
        "",
    );
    install(
        site.path(),
        "bare.dist-info",
        "Name: bare\nVersion: 3\n",
        "[console_scripts]\nbare = bare:main\n",
    );
    write(
        site.path().join("old.thing-2.0-py3.11.egg-info"),
        "Name: old.thing\nVersion: 2.0\n",
    );
    write(
        site.path().join("older.egg-info/PKG-INFO"),
        "Name: older\nVersion: 0.9\n",
    );
    write(site.path().join("no_info.py"), "");
    write(site.path().join("dist-info/METADATA"), "Name: trap\nVersion: 1\n");
    let found = discover(&[site.path()]);
    let known: Vec<_> = found
        .distributions
        .iter()
        .map(|d| (d.name.as_str(), d.version.as_deref().unwrap()))
        .collect();
    let expected = [
        ("bare", "3"),
        ("old-thing", "2.0"),
        ("older", "0.9"),
        ("typing-extensions", "4.12.0"),
    ];
    assert_eq!(known, expected);
    assert_eq!(found.problems, []);
}

#[test]
fn a_version_that_a_folder_name_cannot_spell_is_read() {
    let site = tempfile::tempdir().unwrap();
    install(
        site.path(),
        "acme-1.0_1.dist-info",
        "Name: acme\nVersion: 1.0-1\n",
        "",
    );
    let version = discover(&[site.path()]).distributions[0].version.clone();
    assert_eq!(version.as_deref(), Some("1.0-1"));
}

#[test]
fn eggs_are_distributions_too() {
    let site = tempfile::tempdir().unwrap();
    let egg = site.path().join("acme-1.0-py3.11.egg");
    write(egg.join("EGG-INFO/PKG-INFO"), "Name: acme\nVersion: 1.0\n");
    write(egg.join("EGG-INFO/entry_points.txt"), ACME);
    write(
        site.path().join("dev.egg-info/PKG-INFO"),
        "Name: dev\nVersion: 0\n",
    );
    write(
        site.path().join("dev.egg-info/entry_points.txt"),
        "[switchrail.plugins]\ndev = dev:register\n",
    );
    write(site.path().join("EGG-INFO/PKG-INFO"), "Name: trap\nVersion: 1\n");
    let found = discover(&[egg.as_path(), site.path()]);
    assert_eq!(
        plugins(&found),
        ["acme:acme=acme_gdn:register", "dev:dev=dev:register"]
    );
    assert_eq!(found.packages().version("acme"), Some("1.0"));
    assert_eq!(found.packages().version("trap"), None);
}

#[test]
fn the_first_on_the_path_hides_the_others() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(
        first.path(),
        "Acme_X-2.0.dist-info",
        "Name: Acme_X\nVersion: 2.0\n",
        "",
    );
    install(
        second.path(),
        "acme.x-1.0.dist-info",
        "Name: acme.x\nVersion: 1.0\n",
        ACME,
    );
    let missing = first.path().join("missing");
    let found = discover(&[missing.as_path(), first.path(), second.path(), first.path()]);
    assert_eq!(found.packages().version("acme-x"), Some("2.0"));
    assert_eq!(plugins(&found), Vec::<String>::new());
    assert_eq!(found.problems, []);
    assert_eq!(discover(&[second.path(), first.path()]).plugins.len(), 1);
}

#[test]
fn names_are_normalised_as_python_does() {
    let site = tempfile::tempdir().unwrap();
    install(site.path(), "_acme-1.dist-info", "Name: _acme\nVersion: 1\n", "");
    install(site.path(), "ACME-2.dist-info", "Name: ACME\nVersion: 2\n", "");
    install(
        site.path(),
        "a__b._c-3.dist-info",
        "Name: a__b._c\nVersion: 3\n",
        "",
    );
    let found = discover(&[site.path()]);
    let packages = found.packages();
    let expected = [("-acme", "1"), ("a-b-c", "3"), ("acme", "2")];
    assert_eq!(packages.iter().collect::<Vec<_>>(), expected);
    assert_eq!(
        (packages.version(".acme"), packages.version("A-B.C")),
        (Some("1"), Some("3"))
    );
    assert_eq!(found.problems, []);
}

#[test]
fn two_of_a_name_in_one_folder_are_reported() {
    let site = tempfile::tempdir().unwrap();
    install(
        site.path(),
        "acme-1.0.dist-info",
        "Name: acme\nVersion: 1.0\n",
        ACME,
    );
    install(
        site.path(),
        "acme-2.0.dist-info",
        "Name: acme\nVersion: 2.0\n",
        ACME,
    );
    let found = discover(&[site.path()]);
    assert_eq!(found.packages().version("acme"), Some("1.0"));
    assert_eq!(plugins(&found), ["acme:acme=acme_gdn:register"]);
    let [problem] = &found.problems[..] else {
        panic!("{found:?}")
    };
    assert_eq!(problem.path, site.path().join("acme-2.0.dist-info"));
    assert_eq!(problem.code, ProblemCode::SameName);
    assert!(
        problem.message.contains("acme-1.0.dist-info"),
        "{}",
        problem.message
    );
}

#[test]
fn a_folder_without_metadata_never_hides_a_sound_one() {
    for (left, sound) in [
        ("acme-1.0.dist-info", "acme-2.0.dist-info"),
        ("acme-2.0.dist-info", "acme-1.0.dist-info"),
    ] {
        for apart in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let first = root.path().join("first");
            let second = if apart {
                root.path().join("second")
            } else {
                first.clone()
            };
            write(first.join(left).join("RECORD"), "");
            write(
                first.join(left).join("entry_points.txt"),
                "[switchrail.plugins]\nleft = over:x\n",
            );
            install(&second, sound, "Name: acme\nVersion: 2.5\n", ACME);
            let found = discover(&[first.clone(), second.clone()]);
            assert_eq!(plugins(&found), ["acme:acme=acme_gdn:register"], "{left} {apart}");
            assert_eq!(found.packages().version("acme"), Some("2.5"));
            assert_eq!(found.distributions.len(), 1);
            assert_eq!(found.distributions[0].path, second.join(sound));
            let told = found
                .problems
                .iter()
                .find(|problem| problem.message.contains("ignored in favour of"));
            assert_eq!(told.unwrap().path, first.join(left));
            assert_eq!(told.unwrap().code, ProblemCode::LeftOver);
        }
    }
}

#[test]
fn a_folder_without_metadata_is_used_if_there_is_no_other() {
    let site = tempfile::tempdir().unwrap();
    for info in ["acme-1.0.dist-info", "acme-2.0.dist-info"] {
        write(site.path().join(info).join("RECORD"), "");
    }
    let found = discover(&[site.path()]);
    assert_eq!(found.packages().version("acme"), Some("1.0"));
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
}

#[test]
fn a_thorough_look_lists_broken_metadata_of_any_distribution() {
    let site = tempfile::tempdir().unwrap();
    install(site.path(), "nameless-1.0.dist-info", "Version: 1.0\n", "");
    install(
        site.path(),
        "sound-1.0.dist-info",
        "Name: sound\nVersion: 1.0\n",
        "",
    );
    assert_eq!(discover(&[site.path()]).problems, []);
    let found = discover_thoroughly(&[site.path()]);
    assert_eq!(found.distributions.len(), 2);
    let told: Vec<&str> = found
        .problems
        .iter()
        .map(|problem| problem.message.as_str())
        .collect();
    assert_eq!(told, ["its metadata has no Name"]);
    assert_eq!(found.problems[0].code, ProblemCode::Broken);
    assert_eq!(found.problems[0].path, site.path().join("nameless-1.0.dist-info"));
}

/// The data keeps a name as written; messages show it escaped.
#[test]
fn messages_about_metadata_cannot_control_a_terminal() {
    let site = tempfile::tempdir().unwrap();
    let evil = "a\u{1b}[2K\u{7}\u{9b}1A\u{202e}z";
    let text = format!(
        "[switchrail.plugins]\n{evil} = acme:x\n{evil} = acme:y\ntarget = {evil}:x\nno sign {evil}\nlong = {}-\n",
        "x".repeat(100_000)
    );
    let metadata = format!("Name: acme{evil}\nVersion: 1{evil}\n");
    install(site.path(), &format!("acme{evil}-1.dist-info"), &metadata, &text);
    install(site.path(), &format!("acme{evil}-2.dist-info"), &metadata, "");
    let found = discover(&[site.path()]);
    let reasons = found.plugins.iter().filter_map(|plugin| match &plugin.state {
        PluginState::Failed { reason } => Some(reason),
        _ => None,
    });
    let messages = found.problems.iter().map(|problem| &problem.message);
    let told: Vec<&String> = reasons.chain(messages).collect();
    assert_eq!(told.len(), 5, "{told:#?}");
    for text in told {
        let obeyed = |letter: char| letter.is_control() || letter == '\u{202e}';
        assert!(!text.contains(obeyed) && text.len() < 5_000, "{text:?}");
    }
}

#[test]
fn plugins_of_the_same_name_in_two_distributions_are_both_listed() {
    let site = tempfile::tempdir().unwrap();
    install(site.path(), "beta-1.dist-info", "Name: Beta\nVersion: 1\n", ACME);
    install(
        site.path(),
        "alpha-1.dist-info",
        "Name: Alpha\nVersion: 1\n",
        ACME,
    );
    let found = discover(&[site.path()]);
    assert_eq!(
        plugins(&found),
        ["Alpha:acme=acme_gdn:register", "Beta:acme=acme_gdn:register"]
    );
}

#[test]
fn plugins_with_invalid_declarations_have_failed_with_the_reason() {
    let site = tempfile::tempdir().unwrap();
    let text = "[switchrail.plugins]\nacme = a b\n= a:b\ntwice = a:b\ntwice = c:d\nno target\n";
    install(site.path(), "acme-1.dist-info", "Name: acme\nVersion: 1\n", text);
    let found = discover(&[site.path()]);
    let states: Vec<(String, String)> = found
        .plugins
        .iter()
        .map(|plugin| match &plugin.state {
            PluginState::Failed { reason } => (plugin.name.clone(), reason.clone()),
            other => (plugin.name.clone(), format!("{other:?}")),
        })
        .collect();
    let expected = [
        ("", "its entry point has no name, only the target \"a:b\""),
        ("acme", "its target is \"a b\"; valid: module:attribute"),
        ("twice", "Discovered"),
        ("twice", "acme declares \"twice\" more than once"),
    ]
    .map(|(name, reason)| (name.to_owned(), reason.to_owned()));
    assert_eq!(states, expected);
    assert_eq!(found.problems.len(), 1);
    assert!(
        found.problems[0]
            .message
            .starts_with("\"no target\" under [switchrail.plugins]")
    );
}

#[test]
fn unreadable_distributions_are_listed_as_problems_and_the_others_are_found() {
    let site = tempfile::tempdir().unwrap();
    let at = |name: &str| site.path().join(name);
    install(site.path(), "acme-1.dist-info", "Name: acme\nVersion: 1\n", ACME);
    write(
        at("latin-1.dist-info/entry_points.txt"),
        b"[switchrail.plugins]\nlatin = caf\xe9:x\n",
    );
    write(at("latin-1.dist-info/METADATA"), b"Name: caf\xe9\nVersion: 1\n");
    write(at("folder-1.dist-info/entry_points.txt/x"), "");
    write(
        at("half-1.dist-info/entry_points.txt"),
        "[switchrail.plugins]\nhalf = half:register\n",
    );
    write(at("half-1.dist-info/METADATA"), "Metadata-Version: 2.1\nNam");
    write(
        at("huge-1.dist-info/entry_points.txt"),
        "# too large\n".repeat(200_000),
    );
    fs::create_dir(at("-1.dist-info")).unwrap();
    let file = at("some.zip");
    write(file.clone(), "");
    let found = discover(&[site.path(), file.as_path()]);
    let problems: Vec<String> = found
        .problems
        .iter()
        .map(|problem| {
            let path = problem.path.strip_prefix(site.path()).unwrap().display();
            format!("{path} {}", problem.message)
        })
        .collect();
    let expected = [
        "-1.dist-info has no name",
        "folder-1.dist-info/entry_points.txt cannot be read",
        "half-1.dist-info its metadata has no Name",
        "half-1.dist-info its metadata has no Version",
        "huge-1.dist-info/entry_points.txt cannot be read: it has more than 1048576 bytes",
        "latin-1.dist-info Name is not UTF-8",
        "latin-1.dist-info/entry_points.txt is not UTF-8",
        "some.zip cannot be listed",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
    let half = found.plugins.iter().find(|plugin| plugin.name == "half").unwrap();
    assert_eq!(
        (half.origin.distribution.as_str(), half.origin.version.as_deref()),
        ("half", Some("1"))
    );
    assert!(found.plugins.iter().any(|plugin| plugin.name == "acme"));
    let latin = found
        .plugins
        .iter()
        .find(|plugin| plugin.name == "latin")
        .unwrap();
    assert!(matches!(latin.state, PluginState::Failed { .. }));
}

#[cfg(unix)]
#[test]
fn a_named_pipe_is_not_waited_for() {
    let site = tempfile::tempdir().unwrap();
    install(site.path(), "acme-1.dist-info", "Name: acme\nVersion: 1\n", ACME);
    for info in ["first-1.dist-info", "last-1.dist-info"] {
        fs::create_dir(site.path().join(info)).unwrap();
        let pipe = site.path().join(info).join("entry_points.txt");
        let made = std::process::Command::new("mkfifo").arg(pipe).status().unwrap();
        assert!(made.success());
    }
    assert_eq!(
        plugins(&discover(&[site.path()])),
        ["acme:acme=acme_gdn:register"]
    );
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf8_can_be_serialised() {
    use std::os::unix::ffi::OsStringExt;
    let site = tempfile::tempdir().unwrap();
    let name = std::ffi::OsString::from_vec(b"acm\xff-1.dist-info".to_vec());
    write(site.path().join(name).join("entry_points.txt"), ACME);
    let found = discover(&[site.path()]);
    assert_eq!(found.plugins.len(), 1);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains("acm\u{fffd}-1.dist-info"), "{text}");
}

#[test]
fn a_discovery_survives_json() {
    let site = tempfile::tempdir().unwrap();
    install(site.path(), "acme-1.dist-info", "Name: acme\nVersion: 1\n", ACME);
    let found = discover(&[site.path()]);
    let value = serde_json::to_value(&found).unwrap();
    assert_eq!(value["schema"], switchrail::SCHEMA_VERSION);
    assert_eq!(value["plugins"][0]["state"], "discovered");
    assert_eq!(value["plugins"][0]["group"], "switchrail.plugins");
    assert_eq!(serde_json::from_value::<Discovery>(value).unwrap(), found);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_survive(
        entry_points in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "(\\[switchrail\\.plugins\\]|[a-z \t=:#\\[\\]\r\n]{0,9}){0,12}".prop_map(String::into_bytes),
        ],
        metadata in proptest::collection::vec(any::<u8>(), 0..200),
        stem in "[a-zA-Z0-9._~ -]{0,12}",
        kind in "(dist-info|egg-info|DIST-INFO)",
    ) {
        let site = tempfile::tempdir().unwrap();
        let info = site.path().join(format!("{stem}.{kind}"));
        write(info.join("entry_points.txt"), &entry_points);
        write(info.join("METADATA"), &metadata);
        let found = discover(&[site.path()]);
        prop_assert!(found.distributions.len() == 1 || !found.problems.is_empty());
        prop_assert_eq!(&found, &discover(&[site.path(), site.path()]));
        for plugin in &found.plugins {
            prop_assert_eq!(&plugin.origin.path, &info);
        }
    }
}
