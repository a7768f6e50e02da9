// Reports the results of a load: a table, JSON, and an SVG plot.
#include "loadgen.h"

#include <math.h>

static void print_curve(FILE *f, const curve *c, const char *form) {
    for (int i = 0; i < c->count; i++) fprintf(f, form, i > 0 ? ", " : "", c->x[i], c->y[i] * 1e3);
}

void print_head(const load *l) {
    printf("capacity %.1f requests/s, %.0f tokens/s", l->capacity, l->capacity_tokens);
    if (l->capacity_at > 0) printf(", with %u at a time", l->capacity_at);
    printf("\nidle, ms to the first token by prompt tokens: ");
    print_curve(stdout, &l->first, "%s%.0f: %.3f");
    printf("\nidle, ms between tokens by batch: ");
    print_curve(stdout, &l->gap, "%s%.0f: %.3f");
    printf("\nidle, ms between tokens by batch, p99: ");
    print_curve(stdout, &l->gap_p99, "%s%.0f: %.3f");
    printf("\n\n%5s %9s %9s %9s %9s %9s %5s %30s %26s %6s\n", "load", "offered", "done", "tokens", "good",
           "good tok", "good", "first token, ms", "between tokens, ms", "mean");
    printf("%5s %9s %9s %9s %9s %9s %5s %10s %9s %9s %8s %8s %8s %6s\n", "%", "/s", "/s", "/s", "/s", "/s", "%", "p50",
           "p90", "p99", "p50", "p90", "p99", "batch");
}

void print_level(const level *v) {
    printf("%5d %9.1f %9.1f %9.0f %9.1f %9.0f %5.1f", v->percent, v->offered, v->completed, v->tokens, v->good,
           v->good_tokens, v->good_share);
    printf(" %10.2f %9.2f %9.2f %8.3f %8.3f %8.3f %6.1f\n", v->first[0] * 1e3, v->first[1] * 1e3, v->first[2] * 1e3,
           v->gap[0] * 1e3, v->gap[1] * 1e3, v->gap[2] * 1e3, v->batch);
    printf("      accepted %zu:", v->accepted);
    for (int i = 1; i < REASONS; i++)
        if (v->finish[i] > 0) printf(" %s %zu,", bn_finish_reason_name(i), v->finish[i]);
    printf(" unfinished %zu, lost %zu, torn %zu; refused:", v->unfinished, v->lost, v->torn);
    bool any = false;
    for (int i = 0; i < STATUSES; i++)
        if (v->refused[i] > 0) any = true, printf(" %s %zu", bn_status_name(-i), v->refused[i]);
    printf("%s\n      good above the default priority %.1f%%, others %.1f%%; cached %.1f%% of the prompts' tokens; "
           "preemptions %llu, recomputed %llu tokens",
           any ? "" : " none", v->good_of[1], v->good_of[0], v->cached, (unsigned long long)v->preemptions,
           (unsigned long long)v->recomputed);
    printf("; drained in %.2f s; submits late by %.2f ms (p99)\n", v->drain, v->late * 1e3);
    printf("      p99 between tokens %.2f times that of an idle engine with the mean batch\n", v->gap[2] / v->idle_p99);
    fflush(stdout);
}

static void json_times(FILE *f, const char *name, const double times[3]) {
    fprintf(f, "\"%s\": {\"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f}, ", name, times[0] * 1e3, times[1] * 1e3,
            times[2] * 1e3);
}

static void json_level(FILE *f, const level *v) {
    fprintf(f, "    {\"load_percent\": %d, \"rate\": %.3f, \"offered_per_s\": %.3f, "
               "\"completed_per_s\": %.3f, \"tokens_per_s\": %.2f, \"good_per_s\": %.3f, \"good_tokens_per_s\": %.2f, \"good_percent\": %.2f,\n     ",
            v->percent, v->rate, v->offered, v->completed, v->tokens, v->good, v->good_tokens, v->good_share);
    json_times(f, "first_token_ms", v->first);
    json_times(f, "between_tokens_ms", v->gap);
    fprintf(f, "\"good_percent_urgent\": %.2f, \"good_percent_others\": %.2f, \"cached_percent\": %.2f, "
               "\"preemptions\": %llu, \"recomputed_tokens\": %llu,\n     ",
            v->good_of[1], v->good_of[0], v->cached, (unsigned long long)v->preemptions,
            (unsigned long long)v->recomputed);
    fprintf(f, "\"mean_batch\": %.2f, \"idle_gap_p99_ms\": %.4f, \"drain_s\": %.3f, \"late_p99_ms\": %.3f,\n     \"accepted\": %zu, "
               "\"unfinished\": %zu, \"lost\": %zu, \"torn\": %zu, \"finished\": {",
            v->batch, v->idle_p99 * 1e3, v->drain, v->late * 1e3, v->accepted, v->unfinished, v->lost, v->torn);
    const char *comma = "";
    for (int i = 1; i < REASONS; i++)
        if (v->finish[i] > 0)
            fprintf(f, "%s\"%s\": %zu", comma, bn_finish_reason_name(i), v->finish[i]), comma = ", ";
    fprintf(f, "}, \"refused\": {");
    comma = "";
    for (int i = 0; i < STATUSES; i++)
        if (v->refused[i] > 0) fprintf(f, "%s\"%s\": %zu", comma, bn_status_name(-i), v->refused[i]), comma = ", ";
    fprintf(f, "}}");
}

void write_json(FILE *f, const load *l, const level *levels, int count) {
    const options *o = &l->options;
    fprintf(f, "{\n  \"version\": \"%s\", \"seed\": %.0f, \"seconds\": %g, \"max_batch\": %u,\n", bn_version(), o->seed,
            o->seconds, l->max_batch);
    fprintf(f, "  \"prompt\": %g, \"output\": %g, \"spread\": %g, \"prefixes\": %g, \"prefix_tokens\": %g, "
               "\"prefix_share\": %g, \"deadline_share\": %g, \"priority_share\": %g, \"cancel_share\": %g, "
               "\"target_itl_ms\": %g, \"max_wait_us\": %g, \"burst\": %g, \"drop_late\": %s,\n",
            o->prompt, o->output, o->spread, o->prefixes, o->prefix_tokens, o->prefix_share, o->deadline_share,
            o->priority_share, o->cancel_share, o->target_itl_ms, o->max_wait_us,
            o->burst, o->drop_late ? "true" : "false");
    fprintf(f, "  \"capacity_per_s\": %.3f, \"capacity_tokens_per_s\": %.2f, \"capacity_at\": %u,\n", l->capacity,
            l->capacity_tokens, l->capacity_at);
    fprintf(f, "  \"idle_first_ms\": {");
    print_curve(f, &l->first, "%s\"%.0f\": %.5f");
    fprintf(f, "},\n  \"idle_gap_ms\": {");
    print_curve(f, &l->gap, "%s\"%.0f\": %.5f");
    fprintf(f, "},\n  \"idle_gap_p99_ms\": {");
    print_curve(f, &l->gap_p99, "%s\"%.0f\": %.5f");
    fprintf(f, "},\n  \"levels\": [\n");
    for (int i = 0; i < count; i++) json_level(f, &levels[i]), fprintf(f, i + 1 < count ? ",\n" : "\n");
    fprintf(f, "  ]\n}\n");
}

// -- the plot ----------------------------------------------------------------------------------------

enum { WIDTH = 420, HEIGHT = 260, LEFT = 70, TOP = 50, PANELS = 2, LINES = 2 };

typedef struct {
    const char *title;
    const char *names[LINES];
    double values[LINES][LEVELS];
    bool logarithmic;
    double low, high; // of the axis
} panel;

static double across(const level *levels, int count, int i) {
    double low = levels[0].percent, high = low;
    for (int k = 0; k < count; k++) low = fmin(low, levels[k].percent), high = fmax(high, levels[k].percent);
    return high > low ? (levels[i].percent - low) / (high - low) * WIDTH : WIDTH / 2.0;
}

static double up(const panel *p, double value) {
    double share = p->logarithmic ? log10(fmax(value, p->low) / p->low) / log10(p->high / p->low)
                                  : (value - p->low) / (p->high - p->low);
    return HEIGHT - share * HEIGHT;
}

// Linear from 0, or whole decades.
static double scale(panel *p, int count) {
    double least = INFINITY, most = 0;
    for (int k = 0; k < LINES; k++)
        for (int i = 0; i < count; i++) {
            if (p->values[k][i] > 0) least = fmin(least, p->values[k][i]);
            most = fmax(most, p->values[k][i]);
        }
    if (most <= 0) least = most = 1;
    double decade = pow(10, floor(log10(most)));
    double step = most / decade > 5 ? decade * 2 : most / decade > 2 ? decade : decade / 2;
    p->low = p->logarithmic ? pow(10, floor(log10(least))) : 0;
    p->high = p->logarithmic ? fmax(pow(10, ceil(log10(most))), p->low * 10) : ceil(most / step) * step;
    return p->logarithmic ? 10 : step;
}

static void plot_axes(FILE *f, const panel *p, double step, const level *levels, int count) {
    fprintf(f, "<text x=\"0\" y=\"-20\" class=\"title\">%s</text>\n", p->title);
    for (double v = p->low; v <= p->high * 1.001; v = p->logarithmic ? v * step : v + step)
        fprintf(f, "<path class=\"grid\" d=\"M0 %.1fH%d\"/><text x=\"-8\" y=\"%.1f\" class=\"end\">%g</text>\n",
                up(p, v), WIDTH, up(p, v) + 4, v);
    for (int i = 0; i < count; i++)
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" class=\"mid\">%d%%</text>\n", across(levels, count, i), HEIGHT + 20,
                levels[i].percent);
    fprintf(f, "<text x=\"%d\" y=\"%d\" class=\"mid\">load, of the capacity</text>\n", WIDTH / 2, HEIGHT + 42);
}

static void plot_lines(FILE *f, const panel *p, const level *levels, int count) {
    static const char *const colors[LINES] = {"#1f6fb4", "#d1622b"};
    for (int k = 0; k < LINES; k++) {
        fprintf(f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", colors[k]);
        for (int i = 0; i < count; i++)
            fprintf(f, "%c%.1f %.1f", i > 0 ? 'L' : 'M', across(levels, count, i), up(p, p->values[k][i]));
        fprintf(f, "\"/>\n");
        for (int i = 0; i < count; i++)
            fprintf(f, "<circle r=\"3.5\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"/>\n", colors[k], across(levels, count, i),
                    up(p, p->values[k][i]));
        fprintf(f, "<text x=\"%d\" y=\"-20\" class=\"end\" fill=\"%s\">%s</text>\n", WIDTH - 100 * (LINES - 1 - k),
                colors[k], p->names[k]);
    }
}

void write_plot(FILE *f, const load *l, const level *levels, int count) {
    panel panels[PANELS] = {
        {.title = "requests/s", .names = {"completed", "good"}},
        {.title = "p99, ms", .names = {"first token", "between"}, .logarithmic = true},
    };
    for (int i = 0; i < count; i++) {
        panels[0].values[0][i] = levels[i].completed;
        panels[0].values[1][i] = levels[i].good;
        panels[1].values[0][i] = levels[i].first[2] * 1e3;
        panels[1].values[1][i] = levels[i].gap[2] * 1e3;
    }
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n"
               "<style>text {font: 13px sans-serif} .title {font-weight: bold} .end {text-anchor: end} .mid {text-anchor: middle} "
               ".grid {stroke: #ddd}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            PANELS * (WIDTH + LEFT) + 30, HEIGHT + TOP + 80);
    for (int i = 0; i < PANELS; i++) {
        fprintf(f, "<g transform=\"translate(%d %d)\">\n", LEFT + i * (WIDTH + LEFT), TOP);
        plot_axes(f, &panels[i], scale(&panels[i], count), levels, count);
        plot_lines(f, &panels[i], levels, count);
        fprintf(f, "</g>\n");
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">100%% is %.1f requests/s, %.0f tokens/s</text>\n</svg>\n", LEFT,
            HEIGHT + TOP + 68, l->capacity, l->capacity_tokens);
}
