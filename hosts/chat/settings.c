// /set: what the next answers are sampled with, and the system prompt.
#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(const chat *c) {
    const conversation *h = &c->history;
    options used = sampling_of(c);
    setting s, own;
    for (size_t i = 0; setting_at(&used, i, &s); i++) {
        setting_at(&c->options, i, &own);
        const char *from = !own.usual ? "" : s.field == 0 ? " (default)" : s.usual ? "" : " (the model's)";
        printf("%-19s %s%s\n", s.name, s.field != 0 && s.usual ? "-" : s.value, from);
    }
    if (history_has_system(h))
        printf("%-19s %.*s\n", "system", (int)h->messages[0].content.length, h->messages[0].content.data);
    else
        printf("%-19s -\n", "system");
}

// Cuts a line into a name and what follows, without quotes around it; `value` is NULL if nothing does.
static char *cut(bn_string rest, char **value) {
    char *name = format_text("%.*s", (int)rest.length, rest.data);
    char *end = name + strcspn(name, " \t");
    *value = NULL;
    if (*end == 0) return name;
    *end++ = 0;
    end += strspn(end, " \t");
    size_t length = strlen(end);
    bool quoted = length >= 2 && *end == '"' && end[length - 1] == '"';
    if (quoted) end[length - 1] = 0, end++;
    if (*end != 0) *value = end;
    return name;
}

// Returns false if the value is not one for the setting, after saying so.
static bool change(chat *c, const char *name, char *value) {
    for (char *last = value != NULL ? value + strlen(value) : NULL; last > value && last[-1] == ' ';) *--last = 0;
    if (setting_change(&c->options, name, value)) {
        if (strcmp(name, "seed") == 0) c->turns = 0; // the same seed, the same answers from here on
        return true;
    }
    setting s;
    bool known = false;
    for (size_t i = 0; setting_at(&c->options, i, &s); i++) known |= strcmp(s.name, name) == 0;
    if (known) complain("%s cannot be '%s'", name, value);
    else complain("there is no setting '%s'; /set lists them", name);
    return false;
}

outcome command_set(chat *c, bn_string rest) {
    char *value;
    if (rest.length == 0) return show(c), GO_ON;
    char *name = cut(rest, &value);
    outcome out = GO_ON;
    if (strcmp(name, "system") == 0) {
        out = command_system(c, value != NULL ? (bn_string){value, strlen(value)} : (bn_string){0});
    } else {
        for (char *at = name; *at != 0; at++)
            if (*at == '-') *at = '_';
        out = change(c, name, value) ? GO_ON : FAILED;
        if (out == GO_ON && c->interactive) note("(%s is %s)", name, value != NULL ? value : "the default again");
    }
    free(name);
    return out;
}
