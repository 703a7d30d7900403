/* Samples of integrals that the user holds, and metrics that are the difference of two of them. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>

struct gpm_sample {
    const struct device *device; /* NULL until it was taken */
    int64_t at_ns;
    double sum[KEYS];
};

struct gpm_support {
    unsigned version, supported;
};

struct gpm_metric {
    unsigned id;
    int code;
    double value;
    const char *short_name, *long_name, *unit;
};

/* How many metrics follow depends on the version of the caller: never more than `count` may be touched. */
struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

static int live_samples;

EXPORT int sim_gpm_samples(void);
int sim_gpm_samples(void)
{
    return live_samples;
}

static bool has_gpm(const struct device *device)
{
    return device->parent ? device->parent->gpm : device->gpm;
}

DEVICE_API(nvmlGpmQueryDeviceSupport, (struct device *device, struct gpm_support *into), (device, into))
{
    RETURN_IF(into->version != 1, VERSION_MISMATCH);
    into->supported = has_gpm(device);
    return OK;
}

SYSTEM_API(nvmlGpmSampleAlloc, (struct gpm_sample **into), (into))
{
    *into = calloc(1, sizeof **into);
    RETURN_IF(!*into, INSUFFICIENT_SIZE);
    live_samples++;
    return OK;
}

SYSTEM_API(nvmlGpmSampleFree, (struct gpm_sample *sample), (sample))
{
    RETURN_IF(!sample, INVALID_ARGUMENT);
    live_samples--;
    free(sample);
    return OK;
}

/* Counters are refreshed at intervals; a sample holds what they were at the last one. */
static int take(const struct device *device, struct gpm_sample *sample)
{
    RETURN_IF(!sample, INVALID_ARGUMENT);
    RETURN_IF(!has_gpm(device), NOT_SUPPORTED);
    sample->device = device;
    sample->at_ns = sim.gpm_ns ? now_ns() - now_ns() % sim.gpm_ns : now_ns();
    for (int key = 0; key < KEYS; key++)
        sample->sum[key] = integral(device, (enum key)key, sample->at_ns);
    return OK;
}

DEVICE_API(nvmlGpmSampleGet, (struct device *device, struct gpm_sample *sample), (device, sample))
{
    return take(device, sample);
}

DEVICE_API(nvmlGpmMigSampleGet, (struct device *device, unsigned instance, struct gpm_sample *sample),
           (device, instance, sample))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    for (int slot = 1; slot <= MAX_MIGS; slot++)
        if (device[slot].present && device[slot].instance == instance) {
            int code = injected(F_nvmlGpmMigSampleGet, NO_PART, &device[slot]);
            return code == OK ? take(&device[slot], sample) : code;
        }
    return NOT_FOUND;
}

static bool metric_key(unsigned id, enum key *key, double *unit, const char **name)
{
    *unit = 1.0;
    *name = "%";
    switch (id) {
    case 1: *key = UTIL; return true;
    case 2: *key = SM; return true;
    case 3: *key = OCC; return true;
    case 5:
    case 7: *key = TENSOR; return true;
    case 10: *key = DRAM; return true;
    case 20:
    case 21:
        *key = id == 20 ? TX : RX;
        *unit = 1.0 / (1 << 20);
        *name = "MiB/s";
        return true;
    default: return false;
    }
}

static void work_out(const struct gpm_sample *first, const struct gpm_sample *second, struct gpm_metric *metric)
{
    enum key key;
    double unit;
    int part = (int)metric->id;
    metric->value = NAN;
    metric->short_name = metric->long_name = "simulated";
    if (!metric_key(metric->id, &key, &unit, &metric->unit)) {
        metric->unit = "";
        metric->code = NOT_SUPPORTED;
        return;
    }
    metric->code = injected(F_nvmlGpmMetricsGet, part, first->device);
    if (metric->code != OK)
        return;
    double seconds = 1e-9 * (double)(second->at_ns - first->at_ns);
    double value = seconds > 0 ? unit * (second->sum[key] - first->sum[key]) / seconds : NAN;
    metric->value = altered(F_nvmlGpmMetricsGet, part, first->device, now_ns(), value);
}

SYSTEM_API(nvmlGpmMetricsGet, (struct gpm_metrics *metrics), (metrics))
{
    const struct gpm_sample *first = metrics->first, *second = metrics->second;
    RETURN_IF(metrics->version != 1, VERSION_MISMATCH);
    RETURN_IF(!first || !second || !first->device || first->device != second->device, INVALID_ARGUMENT);
    RETURN_IF(second->at_ns < first->at_ns, INVALID_ARGUMENT);
    int code = injected(F_nvmlGpmMetricsGet, NO_PART, first->device);
    RETURN_IF(code != OK, code);
    for (unsigned i = 0; i < metrics->count; i++)
        work_out(first, second, &metrics->metrics[i]);
    return OK;
}
