//! Rule of a role: requests that it allows, and rules that it covers.

use std::fmt;

use serde_json::Value;

use crate::{Attributes, ResourceAttributes, Target};

/// Value that matches everything.
const ALL: &str = "*";

/// Rule of a role: either for resources or for non-resource URLs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    /// Empty for all objects.
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

/// Converts `rules` of a role.
pub fn list(rules: &Value) -> Vec<Rule> {
    rules.as_array().into_iter().flatten().map(Rule::of).collect()
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

fn has_or_all(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == ALL || item == text)
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let texts = |key: &str| {
            let list = rule[key].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            verbs: texts("verbs"),
            api_groups: texts("apiGroups"),
            resources: texts("resources"),
            resource_names: texts("resourceNames"),
            non_resource_urls: texts("nonResourceURLs"),
        }
    }

    /// Returns true if the rule allows the request.
    pub(super) fn allows(&self, attributes: &Attributes<'_>) -> bool {
        has_or_all(&self.verbs, attributes.verb)
            && match &attributes.target {
                Target::Path(path) => self.allows_path(path),
                Target::Resource(resource) => self.allows_resource(resource),
            }
    }

    fn allows_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|url| url_covers(url, path))
    }

    fn allows_resource(&self, at: &ResourceAttributes<'_>) -> bool {
        let names_resource = |resource: &String| match at.subresource {
            None => resource == ALL || resource == at.resource,
            Some(sub) => {
                let (own, own_sub) = resource.split_once('/').unwrap_or((resource, ""));
                resource == ALL || own_sub == sub && (own == at.resource || own == ALL)
            }
        };
        has_or_all(&self.api_groups, at.group)
            && self.resources.iter().any(names_resource)
            && (self.resource_names.is_empty() || has(&self.resource_names, at.name.unwrap_or_default()))
    }

    /// Returns the number of single rules in [`Rule::singles`].
    pub(super) fn single_count(&self) -> usize {
        let names = self.resource_names.len().max(1);
        let resources = [self.resources.len(), self.verbs.len(), names]
            .iter()
            .fold(self.api_groups.len(), |product, count| {
                product.saturating_mul(*count)
            });
        let urls = self.non_resource_urls.len().saturating_mul(self.verbs.len());
        resources.saturating_add(urls)
    }

    /// Splits the rule into rules for one verb of one resource, object or URL.
    pub(super) fn singles(&self) -> impl Iterator<Item = Single<'_>> {
        let names = || {
            let none = self.resource_names.is_empty().then_some(None);
            none.into_iter()
                .chain(self.resource_names.iter().map(|name| Some(name.as_str())))
        };
        let resources = self.api_groups.iter().flat_map(move |group| {
            self.resources.iter().flat_map(move |resource| {
                self.verbs.iter().flat_map(move |verb| {
                    names().map(move |name| Single {
                        verb,
                        on: On::Resource {
                            group,
                            resource,
                            name,
                        },
                    })
                })
            })
        });
        let urls = self.non_resource_urls.iter().flat_map(move |url| {
            self.verbs.iter().map(move |verb| Single {
                verb,
                on: On::Url(url),
            })
        });
        resources.chain(urls)
    }
}

fn url_covers(url: &str, path: &str) -> bool {
    url == path || url.ends_with('*') && path.starts_with(url.trim_end_matches('*'))
}

/// Smallest part of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Single<'a> {
    pub(super) verb: &'a str,
    pub(super) on: On<'a>,
}

/// Requests to which a single rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum On<'a> {
    Resource {
        group: &'a str,
        /// Resource, or resource and subresource.
        resource: &'a str,
        /// `None` for all objects.
        name: Option<&'a str>,
    },
    Url(&'a str),
}

impl Single<'_> {
    /// Returns true if the rule allows everything that this single rule allows.
    pub(super) fn is_covered_by(&self, rule: &Rule) -> bool {
        has_or_all(&rule.verbs, self.verb)
            && match self.on {
                On::Url(url) => rule.non_resource_urls.iter().any(|own| url_covers(own, url)),
                On::Resource {
                    group,
                    resource,
                    name,
                } => {
                    let covers_resource = |own: &String| {
                        let all_with_subresource = own.strip_prefix("*/");
                        own == ALL
                            || own == resource
                            || all_with_subresource.is_some_and(|own| {
                                resource.split_once('/').is_some_and(|(_, sub)| sub == own)
                            })
                    };
                    has_or_all(&rule.api_groups, group)
                        && rule.resources.iter().any(covers_resource)
                        && (rule.resource_names.is_empty()
                            || name.is_some_and(|name| has(&rule.resource_names, name)))
                }
            }
    }
}

/// Displayed as in the messages of kube-apiserver.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        f.write_str("{")?;
        let shown = parts.iter().filter(|(_, texts)| !texts.is_empty());
        for (index, (name, texts)) in shown.enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name}:{}", quoted(texts))?;
        }
        f.write_str("}")
    }
}

/// Formats texts like Go's `%q`.
pub(super) fn quoted(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", texts.join(" "))
}
