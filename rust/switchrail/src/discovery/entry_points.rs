//! Parses `entry_points.txt` as Python's `importlib.metadata` does.

use super::text::{lines, strip};
use crate::PluginGroup;

/// One entry point in a group that Switchrail reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EntryPoint {
    pub name: String,
    pub group: PluginGroup,
    pub value: String,
}

/// The entry points in Switchrail's groups, and the problems found in these groups.
pub(crate) fn parse(text: &str) -> (Vec<EntryPoint>, Vec<String>) {
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    let mut group = None;
    let heads = |rest: &str| {
        PluginGroup::ALL
            .iter()
            .any(|group| rest.starts_with(&format!("[{group}]")))
    };
    if text.strip_prefix('\u{feff}').is_some_and(heads) {
        problems.push("begins with a byte order mark, so its first line is not read as a group".to_owned());
    }
    for line in lines(text)
        .map(strip)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if line.starts_with('[') && line.ends_with(']') {
            let section = line.trim_matches(['[', ']']);
            group = PluginGroup::ALL
                .into_iter()
                .find(|group| group.as_str() == section);
            continue;
        }
        let Some(group) = group else { continue };
        if let Some((name, value)) = line.split_once('=') {
            entries.push(EntryPoint {
                name: strip(name).to_owned(),
                group,
                value: strip(value).to_owned(),
            });
        } else {
            problems.push(format!(
                "{line:?} under [{group}] is not an entry point; valid: name = module:attribute"
            ));
        }
    }
    (entries, problems)
}

/// Splits a value such as `acme.gdn : register [fast, big]` into its target (`module` or `module:attribute`)
/// and its extras. `None` if it is invalid.
pub(crate) fn parse_value(value: &str) -> Option<(String, Vec<String>)> {
    let (object, extras) = match value.split_once('[') {
        Some((object, extras)) => (object, strip(extras).strip_suffix(']')?),
        None => (value, ""),
    };
    let target = match object.split_once(':') {
        Some((module, attribute)) => format!("{}:{}", dotted(module)?, dotted(attribute)?),
        None => dotted(object)?.to_owned(),
    };
    let extras = extras
        .split(|letter: char| !is_word(letter))
        .filter(|extra| !extra.is_empty());
    Some((target, extras.map(str::to_owned).collect()))
}

fn dotted(name: &str) -> Option<&str> {
    let name = strip(name);
    (!name.is_empty() && name.chars().all(|letter| is_word(letter) || letter == '.')).then_some(name)
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<(String, String)> {
        parse(text)
            .0
            .into_iter()
            .map(|entry| (entry.name, entry.value))
            .collect()
    }

    #[test]
    fn names_keep_their_case_and_lose_their_margins() {
        let text =
            "[console_scripts]\nacme = a:b\n\n[switchrail.plugins]\n  AcmeGDN\t=  acme.gdn:register  \n";
        assert_eq!(
            names(text),
            [("AcmeGDN".to_owned(), "acme.gdn:register".to_owned())]
        );
    }

    #[test]
    fn comments_and_other_groups_are_passed_over() {
        let text = "stray = a:b\n[switchrail.plugins]\n# one = a:b\n   # two = a:b\nthree = c:d\n[other]\nfour = e:f\n";
        assert_eq!(names(text), [("three".to_owned(), "c:d".to_owned())]);
    }

    #[test]
    fn groups_may_be_split_and_lines_end_in_any_way() {
        let text = "[switchrail.plugins]\r\na = m:a\r[switchrail.platforms]\u{2028}p = m:p\n[switchrail.plugins]\nb = m:b";
        let groups: Vec<_> = parse(text)
            .0
            .into_iter()
            .map(|entry| (entry.name, entry.group))
            .collect();
        let expected = [
            ("a".to_owned(), PluginGroup::Plugins),
            ("p".to_owned(), PluginGroup::Platforms),
            ("b".to_owned(), PluginGroup::Plugins),
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn only_the_first_sign_separates() {
        assert_eq!(
            names("[switchrail.plugins]\na = b = c"),
            [("a".to_owned(), "b = c".to_owned())]
        );
    }

    #[test]
    fn a_line_without_a_sign_is_reported() {
        let (entries, problems) = parse("[switchrail.plugins]\nbroken\nok = a:b\n[other]\nbroken\n");
        assert_eq!(entries.len(), 1);
        assert_eq!(
            problems,
            [r#""broken" under [switchrail.plugins] is not an entry point; valid: name = module:attribute"#]
        );
    }

    #[test]
    fn values_have_a_target_and_extras() {
        let parsed = |value: &str| parse_value(value).map(|(target, extras)| (target, extras.join("+")));
        let expect = |target: &str, extras: &str| Some((target.to_owned(), extras.to_owned()));
        assert_eq!(parsed("a.b:c.d"), expect("a.b:c.d", ""));
        assert_eq!(parsed("a.b : c [x, y]"), expect("a.b:c", "x+y"));
        assert_eq!(parsed("a.b"), expect("a.b", ""));
        assert_eq!(parsed("größe:ü[é]"), expect("größe:ü", "é"));
        for broken in ["", ":", "a:", ":b", "a b:c", "a:b:c", "a-b:c", "a:b [x", "a:b] x"] {
            assert_eq!(parsed(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives(text in "(\\[switchrail\\.plugins\\]\n)?\\PC{0,200}") {
            for entry in parse(&text).0 {
                parse_value(&entry.value);
            }
        }
    }
}
