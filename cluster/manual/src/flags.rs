//! The page of commands: every subcommand with every flag, its default and its meaning.

use clap::{Arg, Command};

use crate::{cell, heading};

pub fn page(mut command: Command) -> String {
    command.build();
    let mut out = heading("Commands and flags");
    out.push_str("`corten help COMMAND` shows the same. Flags of every command stand first.\n\n");
    out.push_str(&table(&command, true));
    for subcommand in command.get_subcommands() {
        describe(&mut out, "corten", subcommand);
    }
    out
}

fn describe(out: &mut String, parent: &str, command: &Command) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    out.push_str(&format!("\n## {name}\n\n{}\n", about(command)));
    let positional: Vec<String> = command.get_positionals().map(|argument| format!(" {argument}")).collect();
    if !command.has_subcommands() {
        out.push_str(&format!("\n`{name} [OPTIONS]{}`\n", positional.concat()));
    }
    let table = table(command, false);
    if !table.is_empty() {
        out.push('\n');
        out.push_str(&table);
    }
    for subcommand in command.get_subcommands() {
        describe(out, &name, subcommand);
    }
}

fn about(command: &Command) -> String {
    command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default()
}

/// Returns the flags of a command; the global ones are only those of the root.
fn table(command: &Command, global: bool) -> String {
    let shown = |argument: &&Arg| {
        !argument.is_hide_set()
            && !["help", "version"].contains(&argument.get_id().as_str())
            && argument.is_global_set() == global
    };
    let rows: Vec<String> = command.get_arguments().filter(shown).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("| flag | default | meaning |\n|---|---|---|\n{}", rows.concat())
}

fn row(argument: &Arg) -> String {
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let takes_value = argument.get_action().takes_values();
    let defaults = if takes_value { defaults.join(", ") } else { String::new() };
    format!("| {} | {} | {} |\n", cell(&name(argument)), cell(&defaults), cell(&meaning(argument)))
}

fn name(argument: &Arg) -> String {
    let value = match argument.get_value_names() {
        Some(names) if argument.get_action().takes_values() => {
            names.iter().map(|name| format!("{name}")).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    };
    let Some(long) = argument.get_long() else { return format!("`{value}`") };
    let short = argument.get_short().map(|character| format!("`-{character}`, ")).unwrap_or_default();
    let space = if value.is_empty() { "" } else { " " };
    format!("{short}`--{long}{space}{value}`")
}

/// Returns the help of a flag, and its possible values with theirs.
fn meaning(argument: &Arg) -> String {
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    if !argument.get_action().takes_values() {
        return text;
    }
    for value in argument.get_possible_values().iter().filter(|value| !["true", "false"].contains(&value.get_name())) {
        let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        text.push_str(&format!("<br>`{}`{help}", value.get_name()));
    }
    text
}
