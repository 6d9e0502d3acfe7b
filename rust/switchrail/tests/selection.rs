//! Tests of which plugins a selection allows.

use std::path::PathBuf;

use switchrail::{
    CoreError, DeviceKind, PluginGroup, PluginOrigin, PluginRecord, PluginState, Selection, SelectionError,
};

fn plugin(group: PluginGroup, distribution: &str, name: &str) -> PluginRecord {
    PluginRecord {
        name: name.to_owned(),
        group,
        target: "module:register".to_owned(),
        extras: Vec::new(),
        origin: PluginOrigin {
            distribution: distribution.to_owned(),
            version: Some("1".to_owned()),
            path: PathBuf::from(format!("/site/{distribution}-1.dist-info")),
        },
        state: PluginState::Discovered,
    }
}

fn installed() -> Vec<PluginRecord> {
    use PluginGroup::{Platforms, Plugins};
    vec![
        plugin(Plugins, "Acme.Kernels", "gdn"),
        plugin(Plugins, "npu-vendor", "npu_ops"),
        plugin(Plugins, "other", "gdn"),
        plugin(Platforms, "npu-vendor", "npu"),
        plugin(Platforms, "tpu-vendor", "tpu"),
    ]
}

fn applied(selection: &Selection) -> Result<Vec<String>, SelectionError> {
    let mut plugins = installed();
    selection.apply(&mut plugins)?;
    let kept = plugins
        .iter()
        .filter(|plugin| plugin.state == PluginState::Discovered);
    Ok(kept.map(PluginRecord::qualified_name).collect())
}

fn allowing(names: &str) -> Selection {
    Selection {
        allow: Some(Selection::parse_allow(names)),
        ..Selection::default()
    }
}

fn on(platform: &str) -> Selection {
    Selection {
        platform: Some(platform.to_owned()),
        ..Selection::default()
    }
}

const PLATFORMS: [&str; 2] = ["npu-vendor:npu", "tpu-vendor:tpu"];

#[test]
fn all_plugins_are_allowed_by_default() {
    assert_eq!(applied(&Selection::default()).unwrap().len(), 5);
}

#[test]
fn an_allow_list_takes_names_and_distributions_and_never_hides_platforms() {
    fn with<'a>(general: &[&'a str]) -> Vec<&'a str> {
        [general, &PLATFORMS].concat()
    }
    assert_eq!(
        applied(&allowing("gdn")).unwrap(),
        with(&["Acme.Kernels:gdn", "other:gdn"])
    );
    assert_eq!(
        applied(&allowing(" acme_kernels:gdn ,")).unwrap(),
        with(&["Acme.Kernels:gdn"])
    );
    assert_eq!(
        applied(&allowing("npu_ops,other:gdn")).unwrap(),
        with(&["npu-vendor:npu_ops", "other:gdn"])
    );
    assert_eq!(applied(&allowing("npu")).unwrap(), PLATFORMS);
    assert_eq!(applied(&allowing("")).unwrap(), PLATFORMS);
}

#[test]
fn blocked_plugins_have_a_reason() {
    let mut plugins = installed();
    allowing("npu_ops").apply(&mut plugins).unwrap();
    let reason = "the allow list has only \"npu_ops\"".to_owned();
    assert_eq!(plugins[0].state, PluginState::Blocked { reason });
    allowing("").apply(&mut plugins).unwrap();
    assert_eq!(
        plugins[0].state,
        PluginState::Blocked {
            reason: "the allow list is empty".to_owned()
        }
    );
    on("cuda").apply(&mut plugins).unwrap();
    let reason = "npu-vendor provides the platform \"npu\", but \"cuda\" is in use".to_owned();
    assert_eq!(plugins[1].state, PluginState::Blocked { reason });
    assert_eq!(plugins[0].state, PluginState::Discovered);
}

#[test]
fn an_unknown_plugin_names_the_nearest_and_nothing_changes() {
    let mut plugins = installed();
    let error = allowing("gdn,npu_opps").apply(&mut plugins).unwrap_err();
    assert_eq!(error.code(), "unknown_plugin");
    assert_eq!(error.fields()["found"], "npu_opps");
    assert_eq!(error.fields()["nearest"][0], "npu_ops");
    assert!(error.to_string().contains("\"Acme.Kernels:gdn\""), "{error}");
    assert_eq!(plugins, installed());
}

#[test]
fn plugins_of_other_platforms_than_the_one_in_use_are_blocked() {
    let all_general = ["Acme.Kernels:gdn", "npu-vendor:npu_ops", "other:gdn"];
    assert_eq!(
        applied(&on("npu")).unwrap(),
        [&all_general[..], &PLATFORMS].concat()
    );
    assert_eq!(applied(&on("npu_vendor:npu")).unwrap().len(), 5);
    for platform in ["cuda", "tpu"] {
        assert_eq!(
            applied(&on(platform)).unwrap(),
            [&["Acme.Kernels:gdn", "other:gdn"][..], &PLATFORMS].concat()
        );
    }
}

#[test]
fn the_name_of_a_device_leads_to_a_builtin_or_installed_platform() {
    let plugins = installed();
    let platform_of = |named| Selection::platform_of(named, &plugins);
    for (named, platform) in [
        ("cuda", "cuda"),
        ("cuda:0", "cuda"),
        ("xpu", "xpu"),
        ("npu:1", "npu"),
        ("npu_vendor:npu", "npu_vendor:npu"),
        ("tpu-vendor:tpu:3", "tpu-vendor:tpu"),
    ] {
        assert_eq!(platform_of(named), Some(platform));
    }
    for named in ["acme", "acme.platform:Acme", "", ":"] {
        assert_eq!(platform_of(named), None);
    }
}

#[test]
fn every_kind_of_device_is_a_platform() {
    for kind in DeviceKind::KNOWN {
        assert!(applied(&on(&kind.to_string())).is_ok(), "{kind}");
    }
}

#[test]
fn an_unknown_platform_names_the_nearest() {
    let error = applied(&on("cudaa")).unwrap_err();
    assert_eq!(error.code(), "unknown_platform");
    assert_eq!(error.fields()["nearest"][0], "cuda");
    assert!(
        error.fields()["valid"]
            .as_array()
            .unwrap()
            .contains(&"tpu".into())
    );
}

#[test]
fn loaded_and_failed_plugins_stay_as_they_are() {
    let mut plugins = installed();
    plugins[0].state = PluginState::Loaded;
    plugins[1].state = PluginState::Failed {
        reason: "broken".to_owned(),
    };
    let hung = PluginState::Hung {
        reason: "its import took longer than 5 s".to_owned(),
    };
    plugins[2].state = hung.clone();
    plugins.push(plugin(PluginGroup::Plugins, "late", "late"));
    allowing("").apply(&mut plugins).unwrap();
    assert_eq!(plugins[0].state, PluginState::Loaded);
    assert!(matches!(plugins[1].state, PluginState::Failed { .. }));
    assert_eq!(plugins[2].state, hung);
    assert!(matches!(plugins[5].state, PluginState::Blocked { .. }));
}

#[test]
fn a_selection_survives_json() {
    let selection = on("cpu");
    let text = serde_json::to_string(&selection).unwrap();
    assert_eq!(serde_json::from_str::<Selection>(&text).unwrap(), selection);
    assert_eq!(
        serde_json::from_str::<Selection>("{}").unwrap(),
        Selection::default()
    );
}
