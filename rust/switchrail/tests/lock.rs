//! Tests of locks of temporary installations, and of the differences after changes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use switchrail::{CoreError, Discovery, Lock, LockDifference, LockError, PluginState, discover};
use tempfile::TempDir;

fn write(path: PathBuf, contents: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

const ACME: &str = "[switchrail.plugins]\nacme = acme.gdn:register\n";

/// A wheel as pip installs it.
fn install(site: &Path, version: &str) {
    let info = format!("acme-{version}.dist-info");
    let files = [
        ("acme/__init__.py", ""),
        ("acme/gdn.py", "def register(registry): ...\n"),
        ("acme/tables/a, \"b\".json", "{}"),
        ("acme_extra.py", "x = 1\n"),
        ("../../bin/acme", "#!/usr/bin/python\n"),
        ("acme/__pycache__/gdn.cpython-311.pyc", "compiled"),
        (
            &format!("{info}/METADATA"),
            &format!("Name: acme\nVersion: {version}\n"),
        ),
        (&format!("{info}/entry_points.txt"), ACME),
        (&format!("{info}/INSTALLER"), "pip\n"),
    ];
    let mut record = format!("{info}/RECORD,,\nacme/lost.py,sha256=x,1\n");
    for (path, contents) in files {
        write(site.join(path), contents);
        writeln!(record, "\"{}\",,", path.replace('"', "\"\"")).unwrap();
    }
    write(site.join(info).join("RECORD"), record);
}

fn installed() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let site = root.path().join("lib/site");
    install(&site, "1.0");
    (root, site)
}

fn files(lock: &Lock, distribution: &str) -> Vec<String> {
    let locked = lock
        .distributions
        .iter()
        .find(|locked| locked.name == distribution);
    locked.expect("it is locked").files.keys().cloned().collect()
}

fn lock_of(site: &Path) -> Lock {
    Lock::of(&discover(&[site])).unwrap()
}

fn told(lock: &Lock, site: &Path) -> Vec<String> {
    let differences = lock.differences(&discover(&[site]));
    differences.iter().map(ToString::to_string).collect()
}

fn applied(lock: &Lock, found: &Discovery) -> Vec<(String, PluginState)> {
    let mut plugins = found.plugins.clone();
    lock.apply(found, &mut plugins).unwrap();
    plugins
        .into_iter()
        .map(|plugin| (plugin.qualified_name(), plugin.state))
        .collect()
}

#[test]
fn a_wheel_has_the_files_of_its_record() {
    let (_root, site) = installed();
    let lock = lock_of(&site);
    let expected = [
        "acme-1.0.dist-info/METADATA",
        "acme-1.0.dist-info/entry_points.txt",
        "acme/__init__.py",
        "acme/gdn.py",
        "acme/tables/a, \"b\".json",
        "acme_extra.py",
    ];
    assert_eq!(files(&lock, "acme"), expected);
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(lock.distributions[0].files["acme/__init__.py"], empty);
    assert_eq!(told(&lock, &site), [""; 0]);
}

#[test]
fn the_same_files_elsewhere_have_the_same_lock() {
    let ((_one, first), (_two, second)) = (installed(), installed());
    write(second.join("../../bin/acme"), "#!/opt/other/python\n");
    write(
        second.join("acme/__pycache__/gdn.cpython-313.pyc"),
        "compiled anew",
    );
    write(second.join("acme-1.0.dist-info/INSTALLER"), "uv\n");
    assert_eq!(lock_of(&first), lock_of(&second));
    assert_eq!(lock_of(&first).to_string(), lock_of(&second).to_string());
}

#[test]
fn one_changed_byte_is_a_difference() {
    let (_root, site) = installed();
    let lock = lock_of(&site);
    for path in files(&lock, "acme") {
        let before = fs::read(site.join(&path)).unwrap();
        let mut after = before.clone();
        after.push(b' ');
        fs::write(site.join(&path), after).unwrap();
        assert_eq!(
            told(&lock, &site),
            [format!("acme differs from the lock: files changed: {path}")]
        );
        fs::write(site.join(&path), before).unwrap();
    }
    assert_eq!(told(&lock, &site), [""; 0]);
}

#[test]
fn added_and_missing_files_are_named() {
    let (_root, site) = installed();
    let lock = lock_of(&site);
    fs::remove_file(site.join("acme/gdn.py")).unwrap();
    write(site.join("acme/gdn/__init__.py"), "");
    write(site.join("acme/cache.bin"), "not importable");
    write(site.join("elsewhere/__init__.py"), "");
    assert_eq!(
        told(&lock, &site),
        ["acme differs from the lock: files missing: acme/gdn.py; files added: acme/gdn/__init__.py"]
    );
    for index in 0..5 {
        write(site.join(format!("acme/gdn/{index}.so")), "");
    }
    let more = "files added: acme/gdn/0.so, acme/gdn/1.so, acme/gdn/2.so and 3 more";
    assert!(told(&lock, &site)[0].ends_with(more), "{:?}", told(&lock, &site));
}

#[test]
fn files_that_would_shadow_a_locked_module_are_reported() {
    let (_root, site) = installed();
    write(site.join("space/part/tool.py"), "");
    write(site.join("space/other/module.py"), "of another distribution");
    let record = site.join("acme-1.0.dist-info/RECORD");
    let recorded = fs::read_to_string(&record).unwrap();
    write(record, recorded + "space/part/tool.py,,\n");
    write(
        site.join("other-1.0.dist-info/RECORD"),
        "space/other/module.py,,\nspace/other/new.py,,\n",
    );
    let lock = lock_of(&site);
    for rival in [
        "acme.abi3.so",
        "acme_extra/__init__.py",
        "acme_extra.cpython-311-x86_64-linux-gnu.so",
        "space.py",
        "space/__init__.py",
        "space/part/__init__.pyc",
        "space/part/tool.so",
        "space/part/tool/__init__.py",
        "space/part/more.py",
        "space/nobodys/new.so",
    ] {
        write(site.join(rival), "");
        let told = told(&lock, &site);
        let expected = format!("acme differs from the lock: files added: {rival}");
        assert!(told.len() == 1 && told[0].starts_with(&expected), "{told:?}");
        fs::remove_file(site.join(rival)).unwrap();
    }
    for other in [
        "space/other/new.py",
        "space/part/data.json",
        "bcme.so",
        "acme_extra.txt",
    ] {
        write(site.join(other), "");
        assert_eq!(told(&lock, &site), [""; 0], "{other}");
    }
}

#[test]
fn a_module_that_is_not_recorded_is_locked_or_refused() {
    let (_root, site) = installed();
    let record = site.join("acme-1.0.dist-info/RECORD");
    write(record, "acme-1.0.dist-info/RECORD,,\n");
    let lock = lock_of(&site);
    assert!(files(&lock, "acme").contains(&"acme/gdn.py".to_owned()));
    write(site.join("acme/gdn.py"), "changed");
    assert_eq!(
        told(&lock, &site),
        ["acme differs from the lock: files changed: acme/gdn.py"]
    );
    fs::remove_dir_all(site.join("acme")).unwrap();
    let error = Lock::of(&discover(&[&site])).unwrap_err();
    assert!(
        error.to_string().contains("leads to the module \"acme\""),
        "{error}"
    );
    write(
        site.join("acme-1.0.dist-info/entry_points.txt"),
        "[switchrail.plugins]\nacme = no target\n",
    );
    assert_eq!(files(&lock_of(&site), "acme"), [""; 0]);
}

#[test]
fn a_changed_version_and_changed_entry_points_are_reported() {
    let (_root, site) = installed();
    let lock = lock_of(&site);
    fs::remove_dir_all(site.join("acme-1.0.dist-info")).unwrap();
    install(&site, "1.1");
    write(
        site.join("acme-1.1.dist-info/entry_points.txt"),
        "[switchrail.plugins]\nacme = acme.gdn:other\n",
    );
    let [told] = &told(&lock, &site)[..] else { panic!() };
    let start = "acme differs from the lock: version 1.1 instead of 1.0; entry points added: \"acme = \
                 acme.gdn:other\"; entry points missing: \"acme = acme.gdn:register\"; files missing: ";
    assert!(told.starts_with(start), "{told}");
}

#[test]
fn changed_plugins_are_blocked_and_missing_ones_have_failed() {
    let (_root, site) = installed();
    let other = |name: &str, text: &str| {
        let info = site.join(format!("{name}-1.dist-info"));
        write(info.join("METADATA"), format!("Name: {name}\nVersion: 1\n"));
        write(info.join("entry_points.txt"), text);
        write(info.join("RECORD"), format!("{name}.py,,\n"));
        write(site.join(format!("{name}.py")), "");
    };
    other("fine", "[switchrail.plugins]\nfine = fine:register\n");
    other("gone", "[switchrail.platforms]\nnpu = gone:platform\n");
    let lock = lock_of(&site);
    fs::remove_dir_all(site.join("gone-1.dist-info")).unwrap();
    other(
        "late",
        "[switchrail.plugins]\nlate = late:register\n[switchrail.platforms]\nlate = late:p\n",
    );
    write(site.join("acme/gdn.py"), "changed");
    let found = discover(&[&site]);
    let blocked = |reason: &str| PluginState::Blocked {
        reason: reason.to_owned(),
    };
    let late = blocked("late 1 is not in the lock");
    let absent = PluginState::Failed {
        reason: "the lock has gone 1, which is not installed".to_owned(),
    };
    let expected = [
        (
            "acme:acme",
            blocked("acme differs from the lock: files changed: acme/gdn.py"),
        ),
        ("fine:fine", PluginState::Discovered),
        ("late:late", late.clone()),
        ("late:late", late),
        ("gone:npu", absent),
    ]
    .map(|(name, state)| (name.to_owned(), state));
    assert_eq!(applied(&lock, &found), expected);
}

#[test]
fn applying_twice_adds_nothing_and_keeps_loaded_plugins() {
    let (_root, site) = installed();
    let lock = lock_of(&site);
    let nothing = discover::<&Path>(&[]);
    let mut plugins = Vec::new();
    for _ in 0..2 {
        lock.apply(&nothing, &mut plugins).unwrap();
        assert_eq!(plugins.len(), 1);
    }
    write(site.join("acme/gdn.py"), "changed");
    let found = discover(&[&site]);
    let mut plugins = found.plugins.clone();
    plugins[0].state = PluginState::Loaded;
    lock.apply(&found, &mut plugins).unwrap();
    assert_eq!(plugins[0].state, PluginState::Loaded);
}

#[test]
fn switchrail_itself_is_locked_and_its_difference_is_an_error() {
    let site = tempfile::tempdir().unwrap();
    let info = site.path().join("switchrail-0.1.0.dist-info");
    write(info.join("METADATA"), "Name: switchrail\nVersion: 0.1.0\n");
    write(info.join("RECORD"), "switchrail/__init__.py,,\n");
    write(site.path().join("switchrail/__init__.py"), "");
    write(
        site.path().join("other-1.dist-info/METADATA"),
        "Name: other\nVersion: 1\n",
    );
    let lock = lock_of(site.path());
    assert_eq!(lock.distributions.len(), 1);
    write(site.path().join("switchrail/__init__.py"), "changed");
    let error = lock
        .apply(&discover(&[site.path()]), &mut Vec::new())
        .unwrap_err();
    assert_eq!(error.code(), "lock_host");
    assert_eq!(
        error.fields()["difference"]["changes"][0]["path"],
        "switchrail/__init__.py"
    );
    let message =
        "switchrail differs from the lock: files changed: switchrail/__init__.py; install the locked version";
    assert!(error.to_string().starts_with(message), "{error}");
}

/// Metadata of an editable install, and the sources that `pointers` lead to.
fn editable(root: &Path, pointers: &[(&str, String)]) -> PathBuf {
    let site = root.join("site");
    let info = site.join("acme-1.0.dist-info");
    write(info.join("METADATA"), "Name: acme\nVersion: 1.0\n");
    write(info.join("entry_points.txt"), ACME);
    write(
        info.join("direct_url.json"),
        "{\"dir_info\": {\"editable\": true}, \"url\": \"file:///x\"}",
    );
    let mut record = "acme-1.0.dist-info/METADATA,,\nacme-1.0.dist-info/direct_url.json,,\n".to_owned();
    for (name, text) in pointers {
        writeln!(record, "{name},,").unwrap();
        write(site.join(name), text);
    }
    write(info.join("RECORD"), record);
    let source = root.join("project/src");
    write(source.join("acme/__init__.py"), "");
    write(source.join("acme/gdn.py"), "def register(registry): ...\n");
    write(source.join("acme/kernel.cu"), "");
    write(source.join("acme/__pycache__/gdn.pyc"), "");
    write(source.join("acme/.hidden/notes"), "");
    write(source.join("helper.py"), "");
    write(source.join("docs/conf.py"), "");
    source
}

const SOURCES: [&str; 3] = ["acme/__init__.py", "acme/gdn.py", "acme/kernel.cu"];

#[test]
fn an_editable_install_has_the_files_of_its_sources() {
    type Pointers = fn(&Path) -> Vec<(&'static str, String)>;
    let pth: Pointers = |source| vec![("acme.pth", format!("# acme\n{}\n/nowhere\n", source.display()))];
    let finder: Pointers = |source| {
        let mapping = format!(
            "# it's generated\nMAPPING: dict[str, str] = {{'acme': '{}'}}\nSEPARATOR = '/'\n",
            source.join("acme").display()
        );
        let install = "import __editable___acme_1_0_finder; __editable___acme_1_0_finder.install()";
        vec![
            ("__editable__.acme-1.0.pth", install.to_owned()),
            ("__editable___acme_1_0_finder.py", mapping),
        ]
    };
    let files_mapped: Pointers = |source| {
        let module = source.join("acme/__init__.py");
        vec![(
            "_acme_editable.py",
            format!("known = {{\"acme\": \"{}\"}}\n", module.display()),
        )]
    };
    for (pointers, with_helper) in [(pth, true), (finder, false), (files_mapped, false)] {
        let root = tempfile::tempdir().unwrap();
        let pointers = pointers(&root.path().join("project/src"));
        let source = editable(root.path(), &pointers);
        let site = root.path().join("site");
        let lock = lock_of(&site);
        let mut expected = vec!["acme-1.0.dist-info/METADATA"];
        expected.extend(SOURCES);
        expected.extend(with_helper.then_some("helper.py"));
        assert_eq!(files(&lock, "acme"), expected, "{pointers:?}");
        write(source.join("acme/gdn.py"), "changed");
        write(source.join("acme/new.json"), "{}");
        assert_eq!(
            told(&lock, &site),
            ["acme differs from the lock: files changed: acme/gdn.py; files added: acme/new.json"]
        );
    }
}

/// Someone who adds this note to an installed wheel could otherwise add modules unnoticed.
#[test]
fn a_note_that_an_install_is_editable_hides_no_files() {
    let (_root, site) = installed();
    write(site.join("space/tool.py"), "");
    let record = site.join("acme-1.0.dist-info/RECORD");
    let recorded = fs::read_to_string(&record).unwrap();
    write(record, recorded + "space/tool.py,,\n");
    let lock = lock_of(&site);
    write(
        site.join("acme-1.0.dist-info/direct_url.json"),
        "{\"dir_info\": {\"editable\": true}, \"url\": \"file:///x\"}",
    );
    assert_eq!(told(&lock, &site), [""; 0]);
    for added in [
        "acme/new.py",
        "acme_extra/__init__.py",
        "acme_extra.so",
        "space/new.py",
        "space/tool/__init__.py",
        "acme.so",
    ] {
        write(site.join(added), "");
        let told = told(&lock, &site);
        let expected = format!("acme differs from the lock: files added: {added}");
        assert!(
            told.len() == 1 && told[0].starts_with(&expected),
            "{added}: {told:?}"
        );
        fs::remove_file(site.join(added)).unwrap();
        let _ = fs::remove_dir(site.join(added).parent().unwrap());
    }
}

#[test]
fn a_namespace_package_is_locked_except_for_files_that_other_distributions_recorded() {
    let (_root, site) = installed();
    write(site.join("space/deep/tool.py"), "");
    write(site.join("space/pack/__init__.py"), "");
    let record = site.join("acme-1.0.dist-info/RECORD");
    let recorded = fs::read_to_string(&record).unwrap();
    write(
        record,
        recorded + "space/deep/tool.py,,\nspace/pack/__init__.py,,\n",
    );
    let lock = lock_of(&site);
    assert!(files(&lock, "acme").contains(&"space/pack/__init__.py".to_owned()));
    write(site.join("space/vendor/kernel.py"), "");
    write(site.join("space/vendor/kernel.txt"), "");
    write(site.join("space/pack/more.so"), "");
    let difference = "acme differs from the lock: files added: space/pack/more.so, space/vendor/kernel.py";
    assert_eq!(told(&lock, &site), [difference]);
    let other = "space/vendor/kernel.py,,\nspace/pack/more.so,,\n";
    write(site.join("vendor-1.0.dist-info/RECORD"), other);
    // Files in a package that only this distribution provides are locked, even if another distribution has
    // recorded them too.
    let difference = "acme differs from the lock: files added: space/pack/more.so";
    assert_eq!(told(&lock, &site), [difference]);
    // Discovery ignores the case of the metadata folder's ending, so such distributions own files too.
    fs::rename(
        site.join("vendor-1.0.dist-info"),
        site.join("vendor-1.0.DIST-INFO"),
    )
    .unwrap();
    assert_eq!(told(&lock, &site), [difference]);
    fs::remove_dir_all(site.join("space")).unwrap();
    let difference = "acme differs from the lock: files missing: space/deep/tool.py, space/pack/__init__.py";
    assert_eq!(told(&lock, &site), [difference]);
}

#[test]
fn a_lock_that_is_a_folder_or_nested_too_deeply_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let error = Lock::read(root.path()).unwrap_err();
    assert_eq!(error.code(), "lock_read");
    let deep = root.path().join("deep");
    for text in [
        "[".repeat(200_000),
        "{\"schema\":".repeat(200_000),
        format!("\"{}", "\u{1b}".repeat(100_000)),
    ] {
        write(deep.clone(), text);
        let error = Lock::read(&deep).unwrap_err();
        assert_eq!(error.code(), "lock_document");
        assert!(error.to_string().len() < 2_000 && !error.to_string().contains('\u{1b}'));
    }
}

#[test]
fn an_editable_install_with_top_level_txt_has_only_the_modules_listed_there() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("project/src");
    editable(root.path(), &[("acme.pth", source.display().to_string())]);
    let site = root.path().join("site");
    write(site.join("acme-1.0.dist-info/top_level.txt"), "acme\n");
    assert!(!files(&lock_of(&site), "acme").contains(&"helper.py".to_owned()));
}

#[test]
fn an_editable_install_whose_sources_are_gone_cannot_be_locked() {
    let root = tempfile::tempdir().unwrap();
    let source = editable(
        root.path(),
        &[("acme.pth", root.path().join("project/src").display().to_string())],
    );
    let site = root.path().join("site");
    let lock = lock_of(&site);
    fs::remove_dir_all(&source).unwrap();
    let error = Lock::of(&discover(&[&site])).unwrap_err();
    assert_eq!(error.code(), "lock_file");
    assert!(
        error.to_string().contains("leads to the module \"acme\""),
        "{error}"
    );
    let differences = lock.differences(&discover(&[&site]));
    assert!(
        matches!(&differences[..], [LockDifference::Unreadable { .. }]),
        "{differences:?}"
    );
}

#[test]
fn egg_info_covers_its_folder_or_its_recorded_files() {
    let root = tempfile::tempdir().unwrap();
    let info = root.path().join("acme.egg-info");
    write(info.join("PKG-INFO"), "Name: acme\nVersion: 1.0\n");
    write(info.join("entry_points.txt"), ACME);
    write(root.path().join("acme/gdn.py"), "");
    write(root.path().join("acme_too.py"), "");
    write(root.path().join("setup.py"), "");
    let metadata = ["acme.egg-info/PKG-INFO", "acme.egg-info/entry_points.txt"];
    let locked = || files(&lock_of(root.path()), "acme");
    assert_eq!(locked(), [&metadata[..], &["acme/gdn.py"]].concat());
    write(info.join("top_level.txt"), "acme\nacme_too\n");
    assert_eq!(
        locked(),
        [&metadata[..], &["acme/gdn.py", "acme_too.py"]].concat()
    );
    write(
        info.join("installed-files.txt"),
        "../acme_too.py\nPKG-INFO\n../lost.py\n",
    );
    // The module that its entry point names is not recorded, but would be imported.
    assert_eq!(locked(), ["acme.egg-info/PKG-INFO", "acme/gdn.py", "acme_too.py"]);
}

#[test]
fn an_archive_is_one_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("acme-1.0-py3-none-any.whl");
    let archive = |module: &str| {
        let mut writer = zip::ZipWriter::new(fs::File::create(&path).unwrap());
        for (name, text) in [
            ("acme-1.0.dist-info/METADATA", "Name: acme\nVersion: 1.0\n"),
            ("acme-1.0.dist-info/entry_points.txt", ACME),
            ("acme/gdn.py", module),
        ] {
            writer
                .start_file(name, zip::write::SimpleFileOptions::default())
                .unwrap();
            std::io::Write::write_all(&mut writer, text.as_bytes()).unwrap();
        }
        writer.finish().unwrap();
    };
    archive("");
    let lock = lock_of(&path);
    assert_eq!(files(&lock, "acme"), ["acme-1.0-py3-none-any.whl"]);
    assert_eq!(told(&lock, &path), [""; 0]);
    archive("changed");
    assert_eq!(
        told(&lock, &path),
        ["acme differs from the lock: files changed: acme-1.0-py3-none-any.whl"]
    );
}

#[cfg(unix)]
#[test]
fn a_link_counts_as_its_target() {
    use std::os::unix::fs::symlink;
    let (_root, site) = installed();
    write(site.join("acme/tables/__init__.py"), "");
    write(site.join("acme/zero/__init__.py"), "other");
    symlink("tables", site.join("acme/alias")).unwrap();
    symlink("../acme_extra.py", site.join("acme/linked.py")).unwrap();
    let lock = lock_of(&site);
    for (link, to, change) in [
        ("acme/alias", "zero", "changed: acme/alias/__init__.py"),
        ("acme/linked.py", "nowhere", "missing: acme/linked.py"),
        ("acme/linked.py", "gdn.py", "changed: acme/linked.py"),
    ] {
        let before = fs::read_link(site.join(link)).unwrap();
        fs::remove_file(site.join(link)).unwrap();
        symlink(to, site.join(link)).unwrap();
        assert_eq!(
            told(&lock, &site),
            [format!("acme differs from the lock: files {change}")]
        );
        fs::remove_file(site.join(link)).unwrap();
        symlink(before, site.join(link)).unwrap();
    }
    fs::remove_file(site.join("acme/linked.py")).unwrap();
    symlink("linked.py", site.join("acme/linked.py")).unwrap();
    let told = told(&lock, &site);
    assert!(
        told[0].starts_with("acme cannot be compared with the lock: "),
        "{told:?}"
    );
}

#[cfg(unix)]
#[test]
fn links_may_form_a_cycle() {
    let root = tempfile::tempdir().unwrap();
    let source = editable(
        root.path(),
        &[("acme.pth", root.path().join("project/src").display().to_string())],
    );
    std::os::unix::fs::symlink(&source, source.join("acme/again")).unwrap();
    let site = root.path().join("site");
    let lock = lock_of(&site);
    assert_eq!(
        files(&lock, "acme")
            .iter()
            .filter(|path| path.ends_with("gdn.py"))
            .count(),
        1
    );
}

#[test]
fn a_written_lock_is_read_unchanged() {
    let (root, site) = installed();
    let lock = lock_of(&site);
    let path = root.path().join("switchrail.lock");
    write(path.clone(), lock.to_string());
    assert_eq!(Lock::read(&path).unwrap(), lock);
}

#[test]
fn a_corrupt_lock_is_refused_with_the_reason() {
    let (root, site) = installed();
    let text = lock_of(&site).to_string();
    let path = root.path().join("switchrail.lock");
    let error = Lock::read(&path).unwrap_err();
    assert_eq!(error.code(), "lock_read");
    let digest = "e3b0c44298fc1c14";
    assert!(text.contains(digest));
    let corrupt = [
        (
            text.replace(digest, "f3b0c44298fc1c14"),
            "the digest of acme is not that of its files",
        ),
        (
            text.replace("\"schema\": 1", "\"schema\": 9"),
            "unknown schema version 9",
        ),
        (text[..text.len() / 2].to_owned(), "EOF"),
        (String::new(), "EOF"),
        ("{\"schema\": 1}".to_owned(), "missing field `distributions`"),
    ];
    for (corrupt, reason) in corrupt {
        write(path.clone(), &corrupt);
        let error = Lock::read(&path).unwrap_err();
        assert!(matches!(error, LockError::Document { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(
            error.to_string().contains("switchrail.lock is not a lock"),
            "{error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any metadata, a lock is either refused, or written and then free of differences.
    #[test]
    fn any_record_survives(
        record in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "([a-z\"/.,\\\\]{0,12}\n){0,9}".prop_map(String::into_bytes),
        ],
        pth in "(/|\\.|\\.\\./?|[a-z/]{0,6}\n){0,5}",
    ) {
        let site = tempfile::tempdir().unwrap();
        let info = site.path().join("acme-1.dist-info");
        write(info.join("METADATA"), "Name: acme\nVersion: 1\n");
        write(info.join("entry_points.txt"), ACME);
        write(site.path().join("a.pth"), pth);
        write(info.join("RECORD"), record);
        let found = discover(&[site.path()]);
        if let Ok(lock) = Lock::of(&found) {
            prop_assert_eq!(lock.differences(&found), []);
            prop_assert_eq!(Lock::parse(lock.to_string().as_bytes()).unwrap(), lock);
        }
    }
}
