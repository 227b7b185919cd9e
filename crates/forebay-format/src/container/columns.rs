//! Columns of tables: which of them are the fields of a sample, and the error of a null.

use crate::Error;
use crate::file::Input;
use crate::index::sidecar::MAX_COLUMNS;

/// The name of the field that tells which values of a field are no nulls.
pub(super) fn mask_name(field: &str) -> String {
    format!("{field}.valid")
}

/// The `fields` that are asked for, each with its mask after it where there is one.
pub(super) fn with_masks(fields: &[String], is_offered: impl Fn(&str) -> bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::with_capacity(2 * fields.len());
    for field in fields {
        all.push(field.clone());
        let mask = mask_name(field);
        if is_offered(&mask) && !fields.contains(&mask) {
            all.push(mask);
        }
    }
    all
}

/// The columns that are delivered, of those that a file offers: the `fields`, in this order, or all
/// default ones. Each is a name, whether it is a default, and the column or what is not read.
pub(super) fn choose<T>(
    input: &Input,
    mut offered: Vec<(String, bool, Result<T, String>)>,
    fields: &[String],
) -> Result<Vec<T>, Error> {
    let readable = |offered: &[(String, bool, Result<T, String>)]| {
        let names: Vec<&str> =
            offered.iter().filter(|(.., column)| column.is_ok()).map(|(name, ..)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let mut names: Vec<&str> = offered.iter().map(|(name, ..)| name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, ..]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let found = format!("two of them are named {name:?}");
        return Err(input.unsupported("a table whose columns share a name", found, "rename one of them"));
    }
    let wanted: Vec<usize> = if fields.is_empty() {
        (0..offered.len()).filter(|place| offered[*place].1).collect()
    } else {
        let place = |field: &String| {
            offered.iter().position(|(name, ..)| name == field).ok_or_else(|| {
                let path = input.path().display();
                let of_it = |name: &str| name.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
                if names.iter().any(|name| of_it(name)) {
                    let members: Vec<&str> =
                        offered.iter().map(|(name, ..)| name.as_str()).filter(|name| of_it(name)).collect();
                    return Error::Usage {
                        message: format!("{path}: {field:?} is a structure, whose members are the columns"),
                        hint: format!("name its members: {}", members.join(", ")),
                    };
                }
                Error::Usage {
                    message: format!("{path}: there is no column {field:?}"),
                    hint: format!("its columns that are read: {}", readable(&offered)),
                }
            })
        };
        fields.iter().map(place).collect::<Result<_, _>>()?
    };
    if wanted.is_empty() || wanted.len() > MAX_COLUMNS {
        let found = format!("{} columns", wanted.len());
        let hint = "name some with fields=";
        return Err(input.unsupported(format!("a table without 1 to {MAX_COLUMNS} columns"), found, hint));
    }
    if let Some((name, _, Err(found))) =
        wanted.iter().map(|place| &offered[*place]).find(|(.., one)| one.is_err())
    {
        let hint =
            format!("leave it out: name others with fields=; columns that are read: {}", readable(&offered));
        return Err(input.unsupported(format!("column {name:?}"), found.clone(), hint));
    }
    let mut chosen = Vec::with_capacity(wanted.len());
    for place in wanted {
        let none = || Err(String::new());
        if let Ok(column) = std::mem::replace(&mut offered[place].2, none()) {
            chosen.push(column);
        }
    }
    Ok(chosen)
}

/// The error of a value that is missing: of a row, which a mask can tell, or of an item in it.
pub(super) fn null_error(input: &Input, column: &str, row: u64, is_row: bool) -> Error {
    let mask = if is_row { "open the dataset with nulls=\"mask\", " } else { "" };
    let hint = format!(
        "{mask}leave {column:?} out with fields=, or rewrite the file with a value in its place \
         (pyarrow.compute.fill_null)"
    );
    let place = if is_row { "" } else { ", in a list or array," };
    input.unsupported(
        format!("a null in column {column:?}{place}"),
        format!("the first one is in row {row}"),
        hint,
    )
}
