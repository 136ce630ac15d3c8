//! The plugins at each extension point: the default list, changed by the enabled and disabled plugins of a profile.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Enabled;
use crate::framework::Point;
use crate::plugins::{PLUGINS, registered};

/// The `plugins` of a profile.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Plugins {
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
    multi_point: PluginSet,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PluginSet {
    enabled: Vec<PluginRef>,
    disabled: Vec<PluginRef>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginRef {
    name: String,
    #[serde(default)]
    weight: Option<i32>,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*")
    }

    fn enabled(&self) -> impl Iterator<Item = Enabled> {
        self.enabled.iter().map(|plugin| Enabled {
            name: plugin.name.clone(),
            weight: plugin.weight.filter(|weight| *weight != 0).map_or(1, i64::from),
        })
    }
}

pub fn by_default() -> BTreeMap<Point, Vec<Enabled>> {
    points(&Plugins::default())
}

/// Returns the plugins of the profile at each extension point, or an error.
pub fn resolve(plugins: &Plugins) -> Result<BTreeMap<Point, Vec<Enabled>>, String> {
    for (point, set) in sets(plugins).into_iter().chain([(None, &plugins.multi_point)]) {
        for plugin in &set.enabled {
            let Some(known) = registered(&plugin.name) else {
                return Err(format!("plugins: {:?} does not exist", plugin.name));
            };
            if plugin.weight.is_some_and(|weight| weight < 0) {
                return Err(format!("plugins: weight of {} must not be negative", plugin.name));
            }
            if let Some(point) = point.filter(|point| !known.points.contains(point)) {
                return Err(format!("plugins: {} has nothing to do at {point:?}", plugin.name));
            }
        }
    }
    let points = points(plugins);
    let sorts = points.get(&Point::QueueSort).map_or(0, Vec::len);
    if sorts != 1 {
        return Err(format!("plugins: exactly one queue sort plugin is needed, not {sorts}"));
    }
    if points.get(&Point::Bind).is_none_or(Vec::is_empty) {
        return Err("plugins: at least one bind plugin is needed".to_owned());
    }
    Ok(points)
}

fn sets(plugins: &Plugins) -> Vec<(Option<Point>, &PluginSet)> {
    let sets = [
        &plugins.pre_enqueue,
        &plugins.queue_sort,
        &plugins.pre_filter,
        &plugins.filter,
        &plugins.post_filter,
        &plugins.pre_score,
        &plugins.score,
        &plugins.reserve,
        &plugins.permit,
        &plugins.pre_bind,
        &plugins.bind,
        &plugins.post_bind,
    ];
    Point::ALL.into_iter().map(Some).zip(sets).collect()
}

/// Returns the multiPoint plugins: the default plugins, each in its default position, or at the end if enabled in
/// addition.
fn everywhere(multi_point: &PluginSet) -> Vec<Enabled> {
    let mut enabled: Vec<Enabled> = multi_point.enabled().collect();
    let mut list = Vec::new();
    for plugin in PLUGINS.iter().filter(|plugin| !multi_point.disables(plugin.name)) {
        let own = enabled.iter().position(|enabled| enabled.name == plugin.name).map(|at| enabled.remove(at));
        let weight = if plugin.weight == 0 { 1 } else { plugin.weight };
        list.push(own.unwrap_or_else(|| Enabled { name: plugin.name.to_owned(), weight }));
    }
    list.extend(enabled);
    list
}

/// Returns the plugins of each extension point: first the multiPoint plugins that the point names again, then the other
/// multiPoint plugins that it does not disable, then those that only the point names.
fn points(plugins: &Plugins) -> BTreeMap<Point, Vec<Enabled>> {
    let everywhere = everywhere(&plugins.multi_point);
    let mut points = BTreeMap::new();
    for (point, set) in sets(plugins) {
        let Some(point) = point else { continue };
        let own: Vec<Enabled> = set.enabled().collect();
        let named = |list: &[Enabled], name: &str| list.iter().any(|enabled| enabled.name == name);
        let works = |name: &str| registered(name).is_some_and(|known| known.points.contains(&point));
        let mut list: Vec<Enabled> = own.iter().filter(|one| named(&everywhere, &one.name)).cloned().collect();
        let rest = everywhere.iter().filter(|one| works(&one.name) && !set.disables(&one.name));
        list.extend(rest.filter(|one| !named(&own, &one.name)).cloned());
        list.extend(own.iter().filter(|one| !named(&everywhere, &one.name)).cloned());
        if !list.is_empty() {
            points.insert(point, list);
        }
    }
    points
}
