/*
 * The text that describes devices and what happens to them, a line each:
 *
 *   set KNOB=VALUE ...                       gpu GPU KEY=VALUE ...       mig GPU SLOT KEY=VALUE ...
 *   proc DEVICE PID BYTES                    at SECONDS DEVICE KEY=VALUE ...
 *   err FUNCTION[:PART] DEVICE|* CODE FROM TO          value FUNCTION[:PART] DEVICE|* VALUE FROM TO
 *   lat FUNCTION MICROSECONDS
 *
 * A DEVICE is GPU or GPU/SLOT; a space in a value is written %20.
 */
#include "sim.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, COUNT, BYTES, SECONDS, REAL };

struct setting {
    const char *name;
    enum kind kind;
    size_t offset;
};

#define KNOB(name, kind, member) {name, kind, offsetof(struct sim, member)}
static const struct setting knobs[] = {
    KNOB("driver", TEXT, driver), KNOB("cuda", COUNT, cuda), KNOB("virtual", COUNT, virtual_clock),
    KNOB("sample_hz", COUNT, sample_hz), KNOB("sample_buffer", COUNT, sample_buffer),
    KNOB("sample_idle", COUNT, sample_idle), KNOB("sample_ring", COUNT, sample_ring),
    KNOB("stamps_epoch", COUNT, stamps_epoch), KNOB("stamp_base", SECONDS, stamp_base_ns),
    KNOB("util", SECONDS, util_ns), KNOB("gpm", SECONDS, gpm_ns), KNOB("energy", SECONDS, energy_ns), {0},
};

#define PART(name, kind, member) {name, kind, offsetof(struct device, member)}
static const struct setting attributes[] = {
    PART("index", COUNT, index), PART("name", TEXT, name), PART("uuid", TEXT, uuid), PART("bus", TEXT, bus),
    PART("memory", BYTES, memory), PART("reserved", BYTES, reserved), PART("bus_width", COUNT, bus_width),
    PART("max_sm", COUNT, max_sm), PART("max_mem", COUNT, max_mem), PART("arch", COUNT, arch),
    PART("major", COUNT, major), PART("minor", COUNT, minor), PART("power_limit", COUNT, power_limit),
    PART("slowdown", COUNT, slowdown), PART("shutdown", COUNT, shutdown), PART("gpm", COUNT, gpm),
    PART("mig", COUNT, mig), PART("mig_max", COUNT, mig_max), PART("mig_parent_util", COUNT, mig_parent_util),
    PART("instance", COUNT, instance), PART("compute_instance", COUNT, compute_instance),
    PART("power_mean", SECONDS, power_mean), PART("energy_reset", SECONDS, energy_reset),
    PART("energy_base", REAL, energy_base), PART("energy_scale", REAL, energy_scale), {0},
};

static const char *const key_names[] = {
    "util", "mem", "sm", "occ", "tensor", "dram", "power", "temp", "used", "reasons", "sm_mhz", "mem_mhz", "tx", "rx",
    NULL,
};

#define X(name) #name,
static const char *const function_names[] = {FUNCTIONS(X)};
#undef X

enum function function_named(const char *name)
{
    static const char *const suffixes[] = {"", "_v2", "_v3"};
    if (!strcmp(name, "nvmlInitWithFlags") || !strcmp(name, "nvmlInit_v2"))
        return F_nvmlInit;
    for (int i = 0; i < 3; i++) {
        char full[TEXT_SIZE];
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        for (int function = 0; function < FUNCTION_COUNT; function++)
            if (!strcmp(full, function_names[function]))
                return function;
    }
    return strcmp(name, "*") ? FUNCTION_COUNT : ANY_FUNCTION;
}

static int64_t seconds(const char *word)
{
    double value = strtod(word, NULL);
    return value >= 9e9 ? INT64_MAX : llround(1e9 * value);
}

static void put_text(char *into, const char *word)
{
    size_t used = 0;
    while (*word && used + 1 < TEXT_SIZE) {
        bool space = !strncmp(word, "%20", 3);
        into[used++] = space ? ' ' : *word;
        word += space ? 3 : 1;
    }
    into[used] = '\0';
}

static const char *put(void *record, const struct setting *settings, char *word)
{
    char *value = strchr(word, '=');
    if (!value)
        return "not KEY=VALUE";
    *value++ = '\0';
    while (settings->name && strcmp(settings->name, word))
        settings++;
    if (!settings->name)
        return "unknown key";
    char *place = (char *)record + settings->offset;
    switch (settings->kind) {
    case TEXT: put_text(place, value); break;
    case COUNT: *(unsigned *)place = (unsigned)strtoul(value, NULL, 0); break;
    case BYTES: *(uint64_t *)place = strtoull(value, NULL, 0); break;
    case SECONDS: *(int64_t *)place = seconds(value); break;
    case REAL: *(double *)place = strtod(value, NULL); break;
    }
    return NULL;
}

static const char *put_all(void *record, const struct setting *settings, char **rest)
{
    const char *problem = NULL;
    for (char *word; !problem && (word = strtok_r(NULL, " ", rest));)
        problem = put(record, settings, word);
    return problem;
}

static struct device *device_named(const char *word)
{
    char *end;
    unsigned long gpu = strtoul(word, &end, 10), slot = 0;
    if (end == word || gpu >= MAX_GPUS)
        return NULL;
    if (*end == '/') {
        slot = strtoul(end + 1, NULL, 10) + 1;
        if (slot > MAX_MIGS)
            return NULL;
    }
    return gpu_at((unsigned)gpu) + slot;
}

static const char *load_device(bool is_mig, char **rest)
{
    const char *word = strtok_r(NULL, " ", rest), *slot = is_mig ? strtok_r(NULL, " ", rest) : NULL;
    struct device *gpu = word ? device_named(word) : NULL, *device = gpu;
    if (!gpu || (is_mig && !slot))
        return "no such device";
    if (is_mig) {
        unsigned number = (unsigned)strtoul(slot, NULL, 10);
        if (!gpu->present || number >= MAX_MIGS)
            return "no such MIG slot";
        device = gpu + 1 + number;
        device->parent = gpu;
        device->index = number;
    } else {
        device->index = (unsigned)((device - sim.devices) / (1 + MAX_MIGS));
        device->energy_scale = 1.0;
        device->energy_reset = -1;
    }
    device->present = true;
    return put_all(device, attributes, rest);
}

static const char *load_point(char **rest)
{
    double value[KEYS] = {0};
    bool given[KEYS] = {false};
    const char *at = strtok_r(NULL, " ", rest), *name = strtok_r(NULL, " ", rest);
    struct device *device = name ? device_named(name) : NULL;
    if (!device || !device->present)
        return "no such device";
    for (char *word; (word = strtok_r(NULL, " ", rest));) {
        char *number = strchr(word, '=');
        int key = 0;
        if (!number)
            return "not KEY=VALUE";
        *number++ = '\0';
        while (key_names[key] && strcmp(key_names[key], word))
            key++;
        if (!key_names[key])
            return "unknown key";
        value[key] = strtod(number, NULL);
        given[key] = true;
    }
    return append_point(device, seconds(at), value, given);
}

static const char *load_rule(bool is_value, char **rest)
{
    char *words[5];
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strtok_r(NULL, " ", rest)))
            return "too few words";
    char *part = strchr(words[0], ':');
    if (part)
        *part++ = '\0';
    struct rule rule = {
        .function = function_named(words[0]), .part = part ? atoi(part) : NO_PART,
        .device = strcmp(words[1], "*") ? device_named(words[1]) : NULL, .is_value = is_value,
        .code = atoi(words[2]), .value = strtod(words[2], NULL),
        .from_ns = seconds(words[3]), .to_ns = seconds(words[4]),
    };
    if (rule.function == FUNCTION_COUNT)
        return "unknown function";
    if (strcmp(words[1], "*") && (!rule.device || !rule.device->present))
        return "no such device";
    if (sim.rule_count == MAX_RULES)
        return "too many rules";
    sim.rules[sim.rule_count++] = rule;
    return NULL;
}

static const char *load_process(char **rest)
{
    const char *name = strtok_r(NULL, " ", rest), *pid = strtok_r(NULL, " ", rest), *memory = strtok_r(NULL, " ", rest);
    struct device *device = name ? device_named(name) : NULL;
    if (!device || !device->present || !memory)
        return "no such device, or too few words";
    if (device->process_count == MAX_PROCESSES)
        return "too many processes";
    device->processes[device->process_count++] =
        (struct process){(unsigned)strtoul(pid, NULL, 10), strtoull(memory, NULL, 10)};
    return NULL;
}

static const char *load_latency(char **rest)
{
    const char *name = strtok_r(NULL, " ", rest), *latency = strtok_r(NULL, " ", rest);
    enum function function = name && latency ? function_named(name) : FUNCTION_COUNT;
    if (function >= FUNCTION_COUNT)
        return "unknown function, or too few words";
    sim.latency_us[function] = strtoll(latency, NULL, 10);
    return NULL;
}

const char *load_line(char *line)
{
    char *rest;
    const char *verb = strtok_r(line, " ", &rest);
    if (!verb)
        return NULL;
    if (!strcmp(verb, "set"))
        return put_all(&sim, knobs, &rest);
    if (!strcmp(verb, "gpu") || !strcmp(verb, "mig"))
        return load_device(*verb == 'm', &rest);
    if (!strcmp(verb, "at"))
        return load_point(&rest);
    if (!strcmp(verb, "err") || !strcmp(verb, "value"))
        return load_rule(*verb == 'v', &rest);
    if (!strcmp(verb, "proc"))
        return load_process(&rest);
    return strcmp(verb, "lat") ? "unknown word" : load_latency(&rest);
}

void forget(void)
{
    for (int i = 0; i < MAX_GPUS * (1 + MAX_MIGS); i++)
        free(sim.devices[i].points);
    sim = (struct sim){
        .driver = "580.95.05", .cuda = 13000, .sample_hz = 6, .sample_buffer = 120, .sample_idle = 1,
        .util_ns = 1000000000 / 6, .gpm_ns = 100000000, .energy_ns = 20000000, .stamp_base_ns = -1,
    };
}

const char *load_text(const char *text)
{
    forget();
    const char *problem = NULL;
    char *copy = strdup(text), *rest;
    if (!copy)
        return "out of memory";
    for (char *line = strtok_r(copy, "\n", &rest); line && !problem; line = strtok_r(NULL, "\n", &rest))
        problem = load_line(line);
    free(copy);
    sim.loaded = !problem;
    return problem;
}
